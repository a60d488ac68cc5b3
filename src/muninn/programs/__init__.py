"""Cheaper ways to run a planner: which steps are evaluated, and what stands in at the others."""

from muninn.programs import plan as plan
from muninn.programs import second_look as second_look
from muninn.programs import table as table
