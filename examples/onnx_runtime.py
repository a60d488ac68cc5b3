"""A planner whose network runs in ONNX Runtime, certified against the PyTorch planner it came from.

One promise covers the export, the int8 quantisation and the evaluations that are skipped. Needs
``pip install 'muninn-diffusion[onnx]'``; trains a small network first, a minute in all on one core.
"""

import math
import tempfile
from pathlib import Path

import torch
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

import muninn
from muninn.adapters.onnx import OnnxDenoiser

STEPS, HORIZON = 100, 16
schedule = muninn.Schedule.cosine(STEPS)
signal = torch.tensor(schedule.alpha_bar, dtype=torch.float32).sqrt()


class Network(torch.nn.Module):
    """Predicts the trajectory from a noisy one, the timestep and the start."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rates", torch.linspace(0, 4, 16).exp())
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(HORIZON * 2 + 2 + 32, 128), torch.nn.SiLU(),
            torch.nn.Linear(128, 128), torch.nn.SiLU(),
            torch.nn.Linear(128, HORIZON * 2),
        )  # fmt: skip

    def forward(self, x, timestep, start):
        phase = timestep[:, None] / STEPS * self.rates
        told = torch.cat([x.flatten(1), start, phase.sin(), phase.cos()], dim=1)
        return self.layers(told).view_as(x)


def draw(count, generator):
    """Starts, and trajectories from there to the origin that pass on one of two sides."""
    start = torch.randn(count, 2, generator=generator)
    side = torch.randint(2, (count, 1), generator=generator) * 2.0 - 1.0
    across = torch.stack([-start[:, 1], start[:, 0]], dim=1) / start.norm(dim=1, keepdim=True)
    time = torch.linspace(0, 1, HORIZON)[None, :, None]
    bend = 0.7 * (side * across)[:, None] * (math.pi * time).sin()
    return start, start[:, None] * (1 - time) + bend


def train(network, updates=1500):
    """A few seconds."""
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, updates)
    for _ in range(updates):
        start, clean = draw(256, generator)
        timestep = torch.randint(STEPS, (256,), generator=generator)
        a = signal[timestep].view(-1, 1, 1)
        noisy = a * clean + (1 - a**2).sqrt() * torch.randn(clean.shape, generator=generator)
        optimiser.zero_grad()
        (network(noisy, timestep, start) - clean).square().mean().backward()
        optimiser.step()
        falling.step()
    return network.eval()


torch.manual_seed(0)
network = train(Network())
sampler = muninn.ddim(schedule, kind="sample")
in_pytorch = muninn.Planner(network, sampler, shape=(HORIZON, 2))
contexts, _ = draw(600, torch.Generator().manual_seed(2))

folder = Path(tempfile.mkdtemp())
example = torch.zeros(2, HORIZON, 2), torch.zeros(2, dtype=torch.long), torch.zeros(2, 2)
torch.onnx.export(
    network, example, folder / "fp32.onnx", dynamic_shapes=[{0: "batch"}] * 3, external_data=False,
    verbose=False,
)  # fmt: skip
quant_pre_process(folder / "fp32.onnx", folder / "prepared.onnx")
# Seven bits for weights: with eight, sums saturate on x86 processors without VNNI instructions.
quantize_dynamic(folder / "prepared.onnx", folder / "int8.onnx", reduce_range=True)

# Dynamic quantisation has one scale for all rows of a call: it is certified one row at a time.
for name, rows in (("fp32", 32), ("int8", 1)):
    deployed = muninn.Planner(OnnxDenoiser(folder / f"{name}.onnx"), sampler, shape=(HORIZON, 2))
    certificate = muninn.calibrate(
        deployed, contexts[:300], tolerance=0.05, risk=0.05, reference=in_pytorch, batch_size=rows
    )
    certificate.save(folder / f"{name}.muninn.safetensors")
    fast = muninn.cache(deployed, folder / f"{name}.muninn.safetensors")
    trajectory, record = fast(contexts[:1])
    judged = muninn.evaluate(deployed, certificate, contexts[300:], reference=in_pytorch)
    spent = f"{record.evaluations[0]} of {STEPS} evaluations"
    print(f"{name}: {spent} in the first call, {judged.evaluations:.1f} in the mean of new ones")
    print(judged.sentence())
