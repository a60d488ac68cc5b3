"""What a robot does with a record: escalation, deadlines, supervision."""
