"""Where else the numbers of a run go, by flag: TensorBoard, Weights & Biases."""

from pathlib import Path
from typing import Any, Protocol

from vitreous.errors import VitreousError


class Sink(Protocol):
    def write(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, step: int):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise VitreousError('--tensorboard needs its package: pip install "vitreous[log]"') from error
        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """One run there for one run here: its name is the folder's, so that a resumed run goes on in it."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise VitreousError('--wandb needs its package: pip install "vitreous[log]"') from error
        name = folder.absolute().name
        try:
            self.run: Any = wandb.init(
                project=project, name=name, id=name, dir=str(folder), config=config, resume="allow"
            )
        except Exception as error:  # whatever its network or its settings lead it to
            raise VitreousError(f"--wandb {project}: {error}") from error

    def write(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()
