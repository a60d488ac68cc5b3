"""A denoiser that runs an ONNX file in ONNX Runtime, on the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import DenoiserError, InputError


class OnnxDenoiser:
    """Answers as the network in an ``.onnx`` file does, with as many threads as torch has.

    The file's inputs are the state, the timestep and, if it has more, the context: one tensor, or
    a mapping that has the names of these inputs. Its first output is the prediction; the batch is
    dynamic. Certificates know the file by its hash, and the network by its answers.

    The file is read once: exchanging it later changes nothing until it is loaded again.

    Raises:
        InputError: there is no such file, ONNX Runtime is not installed or cannot run the file,
            or its weights lie in other files, which the hash would not cover.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise InputError(
                "OnnxDenoiser needs ONNX Runtime: pip install 'muninn-diffusion[onnx]'"
            ) from error
        self.path = Path(path).resolve()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # A file is no folder: weights outside of it are not found.
        within = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(within, str(self.path))
        try:
            model = self.path.read_bytes()
            self.session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime has a dozen kinds of its own
            reason = str(error).partition("\n")[0][:300]
            raise InputError(
                f"{path}: cannot be run ({reason}). Give an .onnx file that holds its weights: "
                "torch.onnx.export(..., external_data=False)"
            ) from error
        self._inputs = [each.name for each in self.session.get_inputs()]
        if len(self._inputs) < 2:
            raise InputError(
                f"{path}: has the inputs {self._inputs}; a denoiser's are the state, the timestep "
                "and the context, so export forward(x, timestep, context)"
            )
        # On the session, so that whoever puts another in its place brings another name.
        self.session.muninn_identity = "sha256:" + hashlib.sha256(model).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy reads the file again; another file has another identity."""
        return type(self), (self.path,)

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        state, time, *names = self._inputs
        told = context if isinstance(context, Mapping) else dict.fromkeys(names[:1], context)
        given: dict[str, Any] = {name: told.get(name) for name in names}
        if missing := [name for name, part in given.items() if not isinstance(part, Tensor)]:
            raise DenoiserError(
                f"{self.path.name} takes the inputs {self._inputs} and the context has no tensor "
                f"for {missing}; give one tensor, or a mapping with these names"
            )
        given |= {state: x, time: timestep}
        values = {name: part.detach().cpu().numpy() for name, part in given.items()}
        return torch.from_numpy(self.session.run(None, values)[0]).to(x.device)
