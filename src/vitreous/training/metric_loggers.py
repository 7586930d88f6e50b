"""Optional loggers of the metrics of a run: TensorBoard and Weights & Biases."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from vitreous.errors import VitreousError


class MetricLogger(Protocol):
    def write(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def check_installed(tensorboard: bool, wandb: str | None) -> None:
    """Raise an error if the package of a requested logger is missing."""
    for name, wanted in (("tensorboard", tensorboard), ("wandb", wandb is not None)):
        if wanted and find_spec(name) is None:
            raise VitreousError(f'--{name} needs its package: pip install "vitreous[log]"')


class TensorBoardLogger:
    """Event files in the run directory."""

    def __init__(self, folder: Path, step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    """A Weights & Biases run with the name of the run directory; a resumed run continues it."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any]):
        import wandb

        name = folder.absolute().name
        try:
            self.run: Any = wandb.init(
                project=project, name=name, id=name, dir=str(folder), config=config, resume="allow"
            )
        except Exception as error:  # wandb raises many types: network, login, settings
            raise VitreousError(f"--wandb {project}: {error}") from error

    def write(self, step: int, values: dict[str, float]) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()
