"""The loop: step after step, from wherever the state says, until the end, a signal, or a loss that is no number."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from math import inf, isnan
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import VitreousError
from vitreous.evaluation.evaluate import score
from vitreous.evaluation.metrics import Result, Scores
from vitreous.training import lora, state
from vitreous.training.distributed import World
from vitreous.training.engine import Engine, StepResult
from vitreous.training.loaders import RunLoaders
from vitreous.training.metric_loggers import MetricLogger
from vitreous.training.optim.losses import Loss
from vitreous.training.plan import Plan
from vitreous.training.run_directory import RunDirectory
from vitreous.training.signals import Signals, Stopped
from vitreous.utils.console import printable
from vitreous.utils.device import used_memory
from vitreous.utils.environment import program
from vitreous.utils.memory import size_text
from vitreous.utils.progress import Advance, ProgressReporter
from vitreous.weights.save import save as save_model

PROFILED = (5, 10)  # steps of a process that --profile records, first and last


class DivergenceError(VitreousError):
    """The loss, or a gradient, is no number any more."""


@dataclass
class BestWeights:
    value: float  # of the metric it was chosen by
    loss: float  # decides where that is equal: small sets of images are all right long before training ends
    step: int
    weights: str  # raw or ema


@dataclass
class RunProgress:
    """Where a run is, beside its tensors."""

    step: int = 0
    seconds: float = 0.0  # of training, in all processes that took part one after the other
    best: BestWeights | None = None
    stale: int = 0  # evaluations since the best one
    micro_batch: int = 0
    ended: bool = False  # all steps are done, or patience ended
    evaluated: int = 0  # the last step that was evaluated
    weights: dict[str, str] = field(default_factory=dict)  # digests of best.safetensors and last.safetensors

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunProgress:
        best = values.pop("best")
        return cls(**values, best=None if best is None else BestWeights(**best))


@dataclass
class LogWindow:
    """What happened since the last line of the log. Tensors are not looked at before that."""

    steps: list[tuple[int, StepResult]] = field(default_factory=list)
    waited: float = 0.0
    started: float = field(default_factory=time.perf_counter)


class TrainingLoop:
    def __init__(
        self,
        plan: Plan,
        loaders: RunLoaders,
        engine: Engine,
        folder: RunDirectory,
        reporter: ProgressReporter,
        world: World,
    ):
        self.plan, self.loaders, self.engine, self.folder = plan, loaders, engine, folder
        self.reporter, self.world = reporter, world
        self.metric_loggers: list[MetricLogger] = []
        self.progress = RunProgress(micro_batch=engine.micro_batch)
        self.plain_loss = Loss(engine.loss.sigmoid, engine.loss.classes)  # evaluation: nothing smoothed or weighted
        self.window = LogWindow()
        self.where = self.numbers = ""  # beside the bar

    # ------------------------------------------------------------ the state

    def tensors(self) -> state.Tree:
        """Everything that changes, by name, so that each process could save its part."""
        engine = self.engine
        names: dict[Any, str] = {p: name for name, p in engine.model.named_parameters()}
        moments = {names[p]: dict(o.state[p]) for o in engine.optimisers.optimisers for p in o.state}
        random = {"cpu": torch.get_rng_state()}
        if engine.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(engine.device)
        tree: state.Tree = {"model": engine.model.state_dict(), "optimiser": moments, "random": random}
        return tree if engine.ema is None else {**tree, "ema": engine.ema.state_dict()}

    def restore(self, path: Path, progress: dict[str, Any]) -> None:
        tree = self.tensors()
        state.load_state(path, tree)
        torch.set_rng_state(tree["random"]["cpu"])
        if "cuda" in tree["random"]:
            torch.cuda.set_rng_state(tree["random"]["cuda"], self.engine.device)
        self.progress = RunProgress.from_json(progress)
        self.engine.micro_batch = self.progress.micro_batch
        if self.world.is_main:
            self._restore_files(path)

    def _restore_files(self, path: Path) -> None:
        """The weights as they were when the state was saved; what is there now may be of steps that are lost."""
        state.restore_weight_files(path, self.folder.path, self.progress.weights)
        for file in (self.folder.best, self.folder.last):
            if file.name not in self.progress.weights:
                file.unlink(missing_ok=True)

    def save(self) -> None:
        self._log()  # only numbers go to disk
        self._save_state()

    def _save_state(self) -> None:
        if self.world.is_main:
            weights = {self.folder.path / name: digest for name, digest in self.progress.weights.items()}
            state.save_state(self.folder.state, self.progress.step, self.tensors(), asdict(self.progress), weights)
        self.saved = time.monotonic()

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        plan, progress = self.plan, self.progress
        self.saved = self.resumed = time.monotonic()
        self.before = progress.seconds
        with (
            Signals() as signals,
            self.reporter.bar("training", plan.steps, progress.step) as advance,
            self._profiler() as profiled,
            _memory_explained(plan.device),
        ):
            try:
                self._finish_step()  # of a state that was saved before its evaluation
                batches = self.loaders.train.batches(progress.step, plan.steps)
                while progress.step < plan.steps and not progress.ended:
                    self._step(batches, advance)
                    profiled()
                    self._finish_step()
                    if not progress.ended and self._save_is_due(signals):
                        self.save()
                        self._stop_if_asked(signals)
                self.save()
                self._stop_if_asked(signals)  # before the weights are measured, which may take long
            except DivergenceError:
                raise
            except Exception as error:
                self._save_after(error, signals.received)
                raise

    def _save_is_due(self, signals: Signals) -> bool:
        if self.world.any(signals.received is not None):
            return True
        return self.world.any(time.monotonic() - self.saved > 60 * self.plan.config.run.save_minutes)

    def _stop_if_asked(self, signals: Signals) -> None:
        """After the state was saved. Signals that arrived meanwhile count too."""
        if self.world.any(signals.received is not None):
            raise Stopped(self._farewell(), signals.received or signal.SIGTERM)

    def _finish_step(self) -> None:
        progress = self.progress
        if progress.ended or not progress.step:
            return
        if self._due(progress.step) and progress.evaluated < progress.step:
            self._evaluate()
        progress.ended = progress.step == self.plan.steps or self._patience_is_over()

    def _save_after(self, error: Exception, received: int | None) -> None:
        """Save the state after an error between two steps: a worker that died, a full disk. An error that came while
        weights were being changed leaves nothing to save; then the last state is the one to go on from."""
        if self.engine.updating:
            return
        try:
            self._log()
        except DivergenceError:
            raise
        except VitreousError:  # the log cannot be written, which is no reason to lose the state
            pass
        try:
            self._save_state()
        except Exception as failure:
            if str(failure) != str(error):  # else saving is what failed before
                self.reporter.note(f"the state could not be saved after this error: {failure}")
            return
        if received is not None:  # the whole group was to stop, and a part of it was faster
            raise Stopped(self._farewell(), received) from error
        saved = f"everything up to step {self.progress.step:,} is saved"
        if isinstance(error, VitreousError):
            again = f"to go on: {program()} train --resume {self.folder.path}"
            raise VitreousError(f"{error}\n{saved}; {again}") from error
        self.reporter.note(saved)

    def _step(self, batches: Any, advance: Advance) -> None:
        progress, engine, window = self.progress, self.engine, self.window
        began = time.perf_counter()
        batch = next(batches)
        window.waited += time.perf_counter() - began
        self._name_bad(batch.bad)
        engine.model.train()
        engine.optimisers.set_factor(self.plan.schedule(progress.step))
        engine.set_image_size(self.plan.size_at(progress.step))
        stepped = engine.step(batch, progress.step, self.plan.batch_size, self.world)
        window.steps.append((progress.step, stepped))
        progress.step += 1
        progress.micro_batch, engine.updating = engine.micro_batch, False
        progress.seconds = self.before + time.monotonic() - self.resumed
        for note in engine.notes:
            self._event(note)
        engine.notes.clear()
        if progress.step % self.plan.log_every == 0 or progress.step == self.plan.steps or engine.device.type == "cpu":
            self._log(record=progress.step % self.plan.log_every == 0 or progress.step == self.plan.steps)
        advance(1, self.where, self.numbers)

    def _due(self, step: int) -> bool:
        return self.loaders.val is not None and (step % self.plan.evaluate_every == 0 or step == self.plan.steps)

    def _patience_is_over(self) -> bool:
        patience = self.plan.config.run.patience
        if patience is None or self.progress.stale < patience:
            return False
        self._event(f"no better for {patience} evaluations: stopped early")
        return True

    def _farewell(self) -> str:
        done = f"step {self.progress.step:,} of {self.plan.steps:,}"
        return f"stopped at {done}, everything is saved; to go on: {program()} train --resume {self.folder.path}"

    # ------------------------------------------------------------ what is told

    def _log(self, record: bool = True) -> None:
        """Read the numbers of the steps since the last line; stop at the first that is none."""
        window, plan = self.window, self.plan
        if not window.steps:
            return
        sums = torch.stack([torch.stack([s.loss, s.right]) for _, s in window.steps])
        self.world.all_reduce([sums])
        rows = torch.cat([sums, torch.stack([s.grad_norm for _, s in window.steps])[:, None]], 1).tolist()
        for (step, _), (loss, _, norm) in zip(window.steps, rows, strict=True):
            if not abs(loss) + norm < float("inf"):
                self._not_a_number(step, "loss" if not abs(loss) < float("inf") else "gradient")
        images = len(rows) * plan.batch_size
        passed = time.perf_counter() - window.started
        accuracy = None if plan.facts.multi_label else sum(right for _, right, _ in rows) / images
        line = {
            "kind": "train",
            "step": self.progress.step,
            "examples": self.progress.step * plan.batch_size,
            "epoch": round(self.progress.step * plan.batch_size / plan.facts.images, 4),
            "loss": sum(loss for loss, _, _ in rows) / images,
            "accuracy": accuracy,
            "lr": self.engine.optimisers.learning_rate,
            "grad_norm": rows[-1][2],
            "images_per_second": round(images / passed, 1),
            "data_wait": round(window.waited / passed, 4),
            "memory_bytes": used_memory(self.engine.device),
            "seconds": round(self.progress.seconds, 3),
        }
        self.where, self.numbers = f"epoch {line['epoch']:.1f}", _line(line)
        if record:
            self._record(line)
            self.window = LogWindow()

    def _record(self, line: dict[str, Any]) -> None:
        if not self.world.is_main:
            return
        self.folder.record(line)
        prefix = f"{line['split']}/{line['weights']}/" if line["kind"] == "eval" else f"{line['kind']}/"
        numbers = {f"{prefix}{k}": v for k, v in line.items() if isinstance(v, int | float) and k != "step"}
        for sink in self.metric_loggers:
            sink.write(line["step"], numbers)

    def _event(self, text: str) -> None:
        if self.world.is_main:
            self.folder.record({"kind": "event", "step": self.progress.step, "text": text})
            self.reporter.note(text)

    def _name_bad(self, bad: tuple[tuple[int, str], ...]) -> None:
        """Images that could be read when the data was checked, and cannot be any more."""
        if bad and self.world.is_main:
            self.folder.add_unreadable([f"train\t{reason}" for _, reason in bad])
            self._event(f"{bad[0][1]}: another image takes its place")

    def _not_a_number(self, step: int, what: str) -> None:
        start, stop = self.loaders.train.positions(step)
        indices = self.loaders.train.replacements[self.loaders.train.sampler.indices(start, stop)].tolist()
        path = self.folder.path / "bad_batch.txt"
        names = (printable(self.loaders.train.source.name(i)) for i in indices)
        path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        kept = state.list_states(self.folder.state)
        saved = f"the last good state is {kept[0].name}" if kept else "no state was saved before it"
        raise DivergenceError(
            f"the {what} is no longer a number at step {step} (examples {start} to {stop - 1} of the stream, named in"
            f" {path}); {saved}; try a lower lr, a longer warmup or clip"
        )

    # ------------------------------------------------------------ how good it is

    def _evaluate(self) -> None:
        self._log()
        began = time.perf_counter()
        found = {"raw": self._scored()}
        if self.engine.ema is not None:
            with self.engine.ema.applied():
                found["ema"] = self._scored()
        for weights, result in found.items():
            self._record(
                {
                    "kind": "eval",
                    "step": self.progress.step,
                    "epoch": round(self.progress.step * self.plan.batch_size / self.plan.facts.images, 4),
                    "split": "val",
                    "weights": weights,
                    "images": result.images,
                    **result.summary(),
                    "seconds": round(time.perf_counter() - began, 3),
                }
            )
        # After an error in here the evaluation is done again: files are written before progress is changed.
        self._write(self.folder.last, "raw")
        self._keep_best(found)
        self.progress.evaluated = self.progress.step
        self.window = LogWindow()

    def _scored(self) -> Result:
        assert self.loaders.val is not None
        engine, device = self.engine, self.engine.device
        scores = Scores(engine.loss.classes, self.plan.facts.multi_label, device, engine.loss.sigmoid)
        engine.model.eval()
        score(engine.predict, self.loaders.val, self.plain_loss, scores)
        self.world.all_reduce(scores.sums())
        scores.take(self.world.all_gather(scores.gathered()))
        return scores.result()

    def _keep_best(self, found: dict[str, Result]) -> None:
        name = self.plan.config.run.best_by or "top1"
        sign = -1 if name == "loss" else 1
        progress = self.progress

        def rank(value: float | None, loss: float) -> tuple[float, float]:
            return (-inf if value is None or isnan(value) else sign * value), (-inf if isnan(loss) else -loss)

        ranks = {weights: rank(result.summary().get(name), result.loss) for weights, result in found.items()}
        weights = max(ranks, key=lambda w: ranks[w])
        best = progress.best
        better = ranks[weights][0] > -inf and (best is None or ranks[weights] > rank(best.value, best.loss))
        equal = better and best is not None and ranks[weights][0] == sign * best.value
        if better:
            self._write(self.folder.best, weights)
            progress.best = BestWeights(sign * ranks[weights][0], found[weights].loss, progress.step, weights)
        progress.stale = 0 if better else progress.stale + (ranks[weights][0] > -inf)
        scores = "  ".join(f"{w} {name} {format_metric(name, r.summary().get(name))}" for w, r in found.items())
        if self.world.is_main:
            epoch = progress.step * self.plan.batch_size / self.plan.facts.images
            mark = "  best so far, by its loss" if equal else "  best so far" if better else ""
            self.reporter.notes.print(f"epoch {epoch:6.1f}  val {scores}{mark}")

    def _write(self, path: Path, weights: str) -> None:
        if not self.world.is_main:
            return
        model: Any = self.engine.model
        model.report = None
        mean = self.engine.ema.applied() if weights == "ema" and self.engine.ema is not None else nullcontext()
        with mean, lora.merged(model):
            save_model(model, path)
        self.progress.weights[path.name] = state.file_digest(path)

    def save_last_as_best(self) -> None:
        """Where nothing was held out to choose by."""
        self._write(self.folder.last, "raw")
        self._write(self.folder.best, "raw" if self.engine.ema is None else "ema")

    def _profiler(self) -> Any:
        if not self.plan.config.run.profile:
            return nullcontext(lambda: None)
        if self.plan.steps - self.progress.step < PROFILED[1]:
            raise VitreousError(f"profile: looks at steps {PROFILED[0]} to {PROFILED[1]}, and there are fewer to go")
        return _Profiler(self.folder.path / "profile.json", self.engine.device)


@contextmanager
def _memory_explained(device: torch.device) -> Iterator[None]:
    """Passes make do with less memory; what runs out elsewhere, in the optimiser or in evaluation, cannot."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise VitreousError(
            f"out of memory on {device}, outside of the passes that could be halved: take a smaller model, image_size"
            " or micro_batch"
        ) from error


class _Profiler:
    """A trace of some steps, after the first ones, which compile and allocate."""

    def __init__(self, path: Path, device: torch.device):
        from torch.profiler import ProfilerActivity, profile, schedule

        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        first, last = PROFILED
        steps = schedule(wait=first - 1, warmup=1, active=last - first, repeat=1)
        self.profile = profile(
            activities=kinds, schedule=steps, on_trace_ready=lambda p: p.export_chrome_trace(str(path))
        )

    def __enter__(self) -> Callable[[], None]:
        self.profile.__enter__()
        return self.profile.step

    def __exit__(self, *error: Any) -> None:
        self.profile.__exit__(*error)


def _line(values: dict[str, Any]) -> str:
    """The numbers beside the bar."""
    parts = [f"loss {values['loss']:.3f}"]
    if values["accuracy"] is not None:
        parts.append(f"acc {values['accuracy']:.1%}")
    parts.append(f"lr {values['lr']:.1e}")
    parts.append(f"{values['images_per_second']:,.0f} images/s")
    parts.append(f"wait {values['data_wait']:.0%}")
    parts.append(size_text(values["memory_bytes"]))
    return "  ".join(parts)


def format_metric(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if name == "loss" else f"{value:.2%}"
