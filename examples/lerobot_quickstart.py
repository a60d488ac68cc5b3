"""From nothing to a calibrated, faster LeRobot policy, on a CPU, in less than ten minutes.

Needs the environment of ``make environment-lerobot`` and a trained policy (by default the one in
models/metaworld/diffusion, a DiffusionPolicy for Meta-World's pick-place):

    .venv-lerobot/bin/python examples/lerobot_quickstart.py

The observations are those of Meta-World's scripted expert on problems the policy was not trained
on. Fewer episodes are faster, but may certify nothing but full compute.

For a DiffusionPolicy of your own, with LeRobot 0.4.4 or 0.6.1: ``--policy CHECKPOINT --dataset
EPISODES --limits 0.002 0.002 0.002 0.1``. The dataset is a LeRobotDataset (its folder, or its name
on the hub) or a folder with one file per episode; the limits are the largest acceptable difference
of each action channel, in its own unit.
"""

import argparse
import copy
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.factory import make_pre_post_processors

import muninn
from muninn.adapters import enable_cache, planner_of
from muninn.adapters.lerobot import executed_actions, recorded_calls
from muninn.progress import bars

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--policy", default="models/metaworld/diffusion", help="LeRobot checkpoint")
parser.add_argument("--dataset", help="folder or name; by default Meta-World's expert is recorded")
parser.add_argument("--limits", type=float, nargs="+", help="of each action channel")
parser.add_argument("--episodes", type=int, default=160, help="that give one call each")
parser.add_argument("--calls", type=int, default=20, help="of the comparison at the end")
parser.add_argument("--risk", type=float, default=0.05)
parser.add_argument("--out", default="quickstart.muninn.safetensors", help="of the certificate")
options = parser.parse_args()
if not Path(options.policy, "config.json").is_file():
    parser.exit(1, f"{options.policy} holds no policy; docs/guides/metaworld.md trains one\n")
if options.dataset and not options.limits:
    parser.exit(1, "--dataset needs --limits: the largest acceptable difference of each channel\n")
began = time.perf_counter()


def record(count: int) -> list[dict[str, Any]]:
    """Observations of the expert, one dict per step, as a LeRobotDataset yields them."""
    from muninn_bench.tasks.metaworld.data import demonstrate
    from muninn_bench.tasks.metaworld.policy import features
    from muninn_bench.tasks.metaworld.world import PickPlace

    frames, world = [], PickPlace()
    with bars(show=True) as task:
        advance = task("record the expert", count)
        for episode in range(1000, 1000 + count):  # the policy was trained on 0 to 999
            seen = features(torch.from_numpy(demonstrate(world, episode)[0]).float())
            for step in range(len(seen["observation.state"])):
                frame = {key: value[step] for key, value in seen.items()}
                frames.append({**frame, "episode_index": episode})
            advance(1)
    return frames


def opened(dataset: str) -> Any:
    """A LeRobotDataset, or the folder of recordings itself."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    folder = Path(dataset)
    if (folder / "meta").is_dir():
        return LeRobotDataset(f"local/{folder.name}", root=folder)
    return folder if folder.is_dir() else LeRobotDataset(dataset)


# -- calibrate ------------------------------------------------------------------------------------
policy = DiffusionPolicy.from_pretrained(options.policy)
preprocessor, postprocessor = make_pre_post_processors(policy.config, options.policy)
count = options.episodes + options.calls
frames = opened(options.dataset) if options.dataset else record(count)
# One call of each episode.
contexts = recorded_calls(policy, frames, preprocessor=preprocessor, count=count)
# In Meta-World an action is a displacement of the hand in centimetres, and the gripper's effort.
limits = options.limits or {(0, 1, 2): 0.1, (3,): 0.1}
within = executed_actions(policy, postprocessor, limits)
certificate = muninn.calibrate(
    planner_of(policy),
    contexts[: options.episodes],
    metric=within,
    tolerance=1.0,
    risk=options.risk,
)
certificate.save(options.out)
fast = copy.deepcopy(policy)
enable_cache(fast, certificate)  # fast.select_action(...) from now on

# -- compare on calls that were not calibrated on -------------------------------------------------
spent: dict[str, list[float]] = {"full": [], "fast": []}
evaluations, shares = [], []
for seed, context in enumerate(contexts[options.episodes :].split(1)):
    plans = {}
    for name, acting in (("full", policy), ("fast", fast)):
        torch.manual_seed(seed)
        start = time.perf_counter()
        with torch.no_grad():
            plans[name] = acting.diffusion.conditional_sample(1, global_cond=context)
        spent[name].append(1e3 * (time.perf_counter() - start))
    evaluations.append(int(fast.muninn.last.evaluations[0]))
    shares.append(float(within(plans["full"], plans["fast"])))
beyond = sum(share > 1 for share in shares)
hint = "Only full compute was certified: give more --episodes.\n" * (certificate.member == 0)
one = "1 mm of commanded motion of the hand, or a tenth of the gripper's effort,"
one = f"a difference of {options.limits} in the channels of an action," if options.limits else one
full, cached = (statistics.median(spent[name]) for name in ("full", "fast"))
print(f"""
{certificate.promise()}
A deviation of 1 is {one}
at any of the {policy.config.n_action_steps} actions that a call executes.

                   evaluations   ms per call (median of {options.calls})
LeRobot               {policy.diffusion.num_inference_steps:8d}   {full:8.1f}
with the cache        {statistics.mean(evaluations):8.1f}   {cached:8.1f}

{hint}{full / cached:.1f} times faster; deviation in these {options.calls} calls: median
{statistics.median(shares):.3f}, largest {max(shares):.3f}, above 1 in {beyond}.
{options.out} holds the certificate: enable_cache(policy, {options.out!r}).
All of it took {(time.perf_counter() - began) / 60:.1f} minutes.""")
