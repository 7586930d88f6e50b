"""The training loop: step after step, with logging, evaluation and saved states, until the end, a signal or NaN."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from math import inf, isnan
from pathlib import Path
from typing import Any

import torch

from vitreous.data.loading import Batch
from vitreous.errors import VitreousError
from vitreous.evaluation.evaluate import score
from vitreous.evaluation.metrics import Result, Scores
from vitreous.models.masked import MaskedPatchModel
from vitreous.training import initial_weights, lora, state
from vitreous.training.callbacks import Callbacks, TrainingRun
from vitreous.training.distributed import World
from vitreous.training.engine import Engine, StepResult
from vitreous.training.loaders import RunLoaders
from vitreous.training.log_format import explain_out_of_memory, format_line, format_metric
from vitreous.training.masked_patches import evaluate_patches, patch_targets
from vitreous.training.metric_loggers import MetricLogger
from vitreous.training.optim.losses import Loss
from vitreous.training.optim.patch_targets import PatchLoss
from vitreous.training.optim.schedules import LearningRateSchedule
from vitreous.training.optim.user_optimiser import UserOptimisers
from vitreous.training.plan import Plan
from vitreous.training.profiler import PROFILED_STEPS, StepProfiler
from vitreous.training.run_directory import RunDirectory
from vitreous.training.run_progress import BestWeights, RunProgress
from vitreous.training.signals import Stopped, StopSignals
from vitreous.utils.console import printable
from vitreous.utils.device import peak_memory
from vitreous.utils.environment import program
from vitreous.utils.progress import Advance, ProgressReporter
from vitreous.weights.save import save as save_model


class DivergenceError(VitreousError):
    """The loss or the gradient is not finite."""


@dataclass
class LogWindow:
    """The steps since the last line of the log. Their tensors are read only when the line is written."""

    steps: list[tuple[int, StepResult]] = field(default_factory=list)
    data_wait: float = 0.0  # seconds
    started: float = field(default_factory=time.perf_counter)


class TrainingLoop:
    """Train, log, evaluate and save. All of its state is in `tensors` and `progress`."""

    def __init__(
        self,
        plan: Plan,
        loaders: RunLoaders,
        engine: Engine,
        directory: RunDirectory,
        reporter: ProgressReporter,
        world: World,
        callbacks: Callbacks = Callbacks(),  # noqa: B008 (it is not changed)
    ):
        self.plan, self.loaders, self.engine, self.directory = plan, loaders, engine, directory
        self.reporter, self.world, self.callbacks = reporter, world, callbacks
        self.control = TrainingRun(self)
        self.metric_loggers: list[MetricLogger] = []
        self.progress = RunProgress(micro_batch=engine.micro_batch)
        own = Loss(engine.loss.sigmoid, engine.loss.classes)  # without smoothing and class weights
        self.eval_loss = engine.loss if isinstance(engine.loss, PatchLoss) else own
        self.window = LogWindow()
        self.bar_position = self.bar_numbers = ""  # shown next to the progress bar

    # ------------------------------------------------------------ the saved state

    def tensors(self) -> state.Tree:
        """Model, optimiser state, EMA and random state, by name."""
        engine = self.engine
        names: dict[Any, str] = {p: name for name, p in engine.model.named_parameters()}
        moments = engine.optimisers.state_tensors(names)
        random = {"cpu": torch.get_rng_state()}
        if engine.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(engine.device)
        if engine.device.type == "mps":
            random["mps"] = torch.mps.get_rng_state()
        tree: state.Tree = {"model": engine.model.state_dict(), "optimiser": moments, "random": random}
        return tree if engine.ema is None else {**tree, "ema": engine.ema.state_dict()}

    def restore(self, path: Path, progress: RunProgress, best: Path | None = None) -> None:
        """Restore a state. `best`: the state that best.safetensors is restored from, if it is another one."""
        tree = self.tensors()
        optimisers = self.engine.optimisers
        if isinstance(optimisers, UserOptimisers):  # a new one may have no state yet
            tree["optimiser"] = optimisers.stored_tensors(progress.optimiser)
        state.load_state(path, tree)
        if isinstance(optimisers, UserOptimisers):
            optimisers.restore_state(progress.optimiser, tree["optimiser"])
        torch.set_rng_state(tree["random"]["cpu"])
        if "cuda" in tree["random"]:
            torch.cuda.set_rng_state(tree["random"]["cuda"], self.engine.device)
        if "mps" in tree["random"]:
            torch.mps.set_rng_state(tree["random"]["mps"])
        self.progress = progress
        self.callbacks.restore(progress.callbacks)
        self.engine.micro_batch = self.progress.micro_batch
        if self.world.is_main:
            self._restore_weight_files({self.directory.last: path, self.directory.best: best or path})

    def _restore_weight_files(self, sources: dict[Path, Path]) -> None:
        """Restore best.safetensors and last.safetensors. The present ones may be of steps after the saved state."""
        for file, source in sources.items():
            if file.name in self.progress.weights:
                state.restore_weight_file(source, file)
            else:
                file.unlink(missing_ok=True)

    def save(self) -> None:
        self._log()  # raises an error if the loss is not finite, so that only finite weights are saved
        self._save_state()

    def _save_state(self) -> None:
        self._write_state(self.directory.state, state.KEPT)
        self.saved = time.monotonic()

    def _write_state(self, folder: Path, keep: int) -> None:
        if self.world.is_main:
            weights = {self.directory.path / name: digest for name, digest in self.progress.weights.items()}
            self.progress.callbacks = self.callbacks.state()
            if isinstance(optimisers := self.engine.optimisers, UserOptimisers):
                self.progress.optimiser = optimisers.packed_state()[0]
            path = state.save_state(folder, self.progress.step, self.tensors(), asdict(self.progress), weights, keep)
            if folder == self.directory.state:
                self.callbacks.call("on_checkpoint", self.control, path)

    def _save_before_cooldown(self) -> None:
        """Save the state in which the cool-down starts: a longer run would continue from there."""
        schedule, folder = self.plan.schedule, self.directory.before_cooldown
        if not isinstance(schedule, LearningRateSchedule) or not schedule.cooldown:
            return
        if self.progress.step != schedule.total - schedule.cooldown or not self.progress.step:
            return
        self._log()
        self._write_state(folder, keep=1)

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        plan, progress = self.plan, self.progress
        self.saved = self.resumed = time.monotonic()
        self.seconds_before = progress.seconds
        with (
            StopSignals() as signals,
            self.reporter.bar("training", plan.steps, progress.step) as advance,
            self._profiler() as profile_step,
            explain_out_of_memory(plan.device),
        ):
            try:
                self.callbacks.call("on_start", self.control)
                self._finish_step()  # the state may have been saved before the evaluation of its step
                self._save_before_cooldown()
                batches = self.loaders.train.batches(progress.step, plan.steps)
                while progress.step < plan.steps and not progress.ended:
                    self._step(batches, advance)
                    profile_step()
                    self._finish_step()
                    self._save_before_cooldown()
                    if not progress.ended and self._save_is_due(signals):
                        self.save()
                        self._stop_if_requested(signals)
                if progress.best is None:  # there are no validation images, or the metric is undefined for them
                    self.save_last_as_best()
                self.callbacks.call("on_end", self.control)
                self.save()
                self._stop_if_requested(signals)  # before the final evaluation, which may take long
            except DivergenceError:
                raise
            except Exception as error:
                self._save_after_error(error, signals.received)
                raise

    def _save_is_due(self, signals: StopSignals) -> bool:
        if self.world.any(signals.received is not None):
            return True
        return self.world.any(time.monotonic() - self.saved > 60 * self.plan.config.run.save_minutes)

    def _stop_if_requested(self, signals: StopSignals) -> None:
        """Call after saving the state. Signals that arrived during the save count too."""
        if self.world.any(signals.received is not None):
            raise Stopped(self._stop_message(), signals.received or signal.SIGTERM)

    def _finish_step(self) -> None:
        """Evaluate if it is due, and decide whether training has ended."""
        progress = self.progress
        if progress.ended or not progress.step:
            return
        if self._evaluation_is_due(progress.step) and progress.evaluated < progress.step:
            self._evaluate()
        progress.ended = progress.step == self.plan.steps or self._patience_is_over() or bool(progress.stop_reason)

    def _save_after_error(self, error: Exception, received: int | None) -> None:
        """Save the state after an error between two steps, such as a dead worker or a full disk. After an error during
        the update of the weights nothing is saved: they belong to no step, and the last saved state is used."""
        if self.engine.updating:
            return
        try:
            self._log()
        except DivergenceError:
            raise
        except VitreousError:  # the log cannot be written; save the state anyway
            pass
        try:
            self._save_state()
        except Exception as failure:
            if str(failure) != str(error):  # otherwise the error was that of an earlier save
                self.reporter.note(f"the state could not be saved after this error: {failure}")
            return
        if received is not None:  # the signal was sent to all processes, and a worker stopped first
            raise Stopped(self._stop_message(), received) from error
        saved = f"the state of step {self.progress.step:,} is saved"
        if isinstance(error, VitreousError):
            command = f"{program()} train --resume {self.directory.path}"
            raise VitreousError(f"{error}\n{saved}; to continue: {command}") from error
        self.reporter.note(saved)

    def _step(self, batches: Iterator[Batch], advance: Advance) -> None:
        progress, engine, window = self.progress, self.engine, self.window
        started = time.perf_counter()
        batch = next(batches)
        window.data_wait += time.perf_counter() - started
        self._report_unreadable(batch.bad)
        engine.model.train()
        engine.optimisers.set_factor(self.plan.schedule(progress.step) * progress.lr_scale)
        engine.set_image_size(self.plan.size_at(progress.step))
        result = engine.step(batch, progress.step, self.plan.batch_size, self.world)
        window.steps.append((progress.step, result))
        progress.step += 1
        progress.micro_batch, engine.updating = engine.micro_batch, False
        progress.seconds = self.seconds_before + time.monotonic() - self.resumed
        for note in engine.notes:
            self.event(note)
        engine.notes.clear()
        record = progress.step % self.plan.log_every == 0 or progress.step == self.plan.steps
        if record or engine.device.type == "cpu":  # reading the loss of every step would slow down a GPU
            self._log(record)
        self.callbacks.call("on_step", self.control)
        advance(1, self.bar_position, self.bar_numbers)

    def _evaluation_is_due(self, step: int) -> bool:
        last = step == self.plan.steps or self.progress.stop_reason
        return self.loaders.val is not None and (step % self.plan.evaluate_every == 0 or bool(last))

    def _patience_is_over(self) -> bool:
        patience = self.plan.config.run.patience
        if patience is None or self.progress.stale < patience:
            return False
        self.event(f"no improvement for {patience} evaluations: stopped early")
        return True

    def _stop_message(self) -> str:
        step = f"step {self.progress.step:,} of {self.plan.steps:,}"
        command = f"{program()} train --resume {self.directory.path}"
        return f"stopped at {step}, everything is saved; to continue: {command}"

    # ------------------------------------------------------------ the log

    def _log(self, record: bool = True) -> None:
        """Read loss and gradient norm of the steps since the last line, and raise an error if one is not finite.
        `record`: write a line to the log. Otherwise only the progress bar is updated."""
        window, plan = self.window, self.plan
        if not window.steps:
            return
        sums = torch.stack([torch.stack([s.loss, s.right]) for _, s in window.steps])
        self.world.all_reduce([sums])
        rows = torch.cat([sums, torch.stack([s.grad_norm for _, s in window.steps])[:, None]], 1).tolist()
        for (step, _), (loss, _, norm) in zip(window.steps, rows, strict=True):
            if not abs(loss) + norm < inf:
                self._raise_divergence(step, "loss" if not abs(loss) < inf else "gradient")
        images = len(rows) * plan.batch_size
        elapsed = time.perf_counter() - window.started
        no_accuracy = plan.facts.multi_label or not self.engine.loss.classifies
        accuracy = None if no_accuracy else sum(right for _, right, _ in rows) / images
        line = {
            "kind": "train",
            "step": self.progress.step,
            "examples": self.progress.step * plan.batch_size,
            "epoch": round(self.epoch, 4),
            "loss": sum(loss for loss, _, _ in rows) / images,
            "accuracy": accuracy,
            "lr": self.engine.optimisers.learning_rate,
            "grad_norm": rows[-1][2],
            "images_per_second": round(images / elapsed, 1),
            "data_wait": round(window.data_wait / elapsed, 4),
            "memory_bytes": peak_memory(self.engine.device),
            "seconds": round(self.progress.seconds, 3),
        }
        self.bar_position, self.bar_numbers = f"epoch {line['epoch']:.1f}", format_line(line)
        if record:
            self.record(line)
            self.window = LogWindow()

    @property
    def epoch(self) -> float:
        return self.progress.step * self.plan.batch_size / self.plan.facts.images

    def record(self, line: dict[str, Any]) -> None:
        if not self.world.is_main:
            return
        self.directory.record(line)
        prefix = f"{line['split']}/{line['weights']}/" if line["kind"] == "eval" else f"{line['kind']}/"
        numbers = {f"{prefix}{k}": v for k, v in line.items() if isinstance(v, int | float) and k != "step"}
        for logger in self.metric_loggers:
            logger.write(line["step"], numbers)

    def event(self, text: str) -> None:
        if self.world.is_main:
            self.directory.record({"kind": "event", "step": self.progress.step, "text": text})
            self.reporter.note(text)

    def _report_unreadable(self, bad: tuple[tuple[int, str], ...]) -> None:
        """Report images that became unreadable after the scan at the start."""
        if bad and self.world.is_main:
            self.directory.add_unreadable([f"train\t{reason}" for _, reason in bad])
            self.event(f"{bad[0][1]}: another image takes its place")

    def _raise_divergence(self, step: int, what: str) -> None:
        """Write the names of the images of the step to bad_batch.txt, and raise an error."""
        train = self.loaders.train
        start, stop = train.positions(step)
        indices = train.replacements[train.sampler.indices(start, stop)].tolist()
        path = self.directory.path / "bad_batch.txt"
        names = (printable(train.source.name(i)) for i in indices)
        path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        states = state.list_states(self.directory.state)
        saved = f"the last good state is {states[0].name}" if states else "no state was saved before"
        raise DivergenceError(
            f"the {what} is NaN or infinite at step {step} (examples {start} to {stop - 1} of the training stream,"
            f" listed in {path}); {saved}; try a lower lr, a longer warmup or clip"
        )

    # ------------------------------------------------------------ evaluation

    def _evaluate(self) -> None:
        """Evaluate the weights, and their EMA, on the validation images, and keep the best."""
        self._log()
        started = time.perf_counter()
        results = {"raw": self._evaluate_model()}
        if self.engine.ema is not None:
            with self.engine.ema.applied():
                results["ema"] = self._evaluate_model()
        for weights, result in results.items():
            self.record(
                {
                    "kind": "eval",
                    "step": self.progress.step,
                    "epoch": round(self.epoch, 4),
                    "split": "val",
                    "weights": weights,
                    "images": result.images,
                    **result.summary(),
                    "seconds": round(time.perf_counter() - started, 3),
                }
            )
        # The files are written before `progress` is changed: after an error in between, the evaluation is repeated.
        self._write_weights(self.directory.last, "raw")
        self._keep_best(results)
        self.callbacks.call("on_evaluation", self.control, {name: one.summary() for name, one in results.items()})
        self.progress.evaluated = self.progress.step
        self.window = LogWindow()

    def _evaluate_model(self) -> Result:
        assert self.loaders.val is not None
        engine, device = self.engine, self.engine.device
        if isinstance(engine.model, MaskedPatchModel) and isinstance(self.eval_loss, PatchLoss):
            targets = patch_targets(self.plan.config, self.plan.model)
            model, val = engine.model.eval(), self.loaders.val
            return evaluate_patches(engine.predict, model, val, targets, self.eval_loss, self.world)
        scores = Scores(engine.loss.classes, self.plan.facts.multi_label, device, engine.loss.sigmoid)
        engine.model.eval()
        score(engine.predict, self.loaders.val, self.eval_loss, scores)
        self.world.all_reduce(scores.sums())
        scores.take(self.world.all_gather(scores.gathered()))
        return scores.result()

    def _keep_best(self, results: dict[str, Result]) -> None:
        """Write best.safetensors if one of the results is better than all before."""
        metric = self.plan.config.run.best_by or "top1"
        sign = -1 if metric == "loss" else 1
        progress = self.progress

        def rank(value: float | None, loss: float) -> tuple[float, float]:
            return (-inf if value is None or isnan(value) else sign * value), (-inf if isnan(loss) else -loss)

        ranks = {weights: rank(result.summary().get(metric), result.loss) for weights, result in results.items()}
        weights = max(ranks, key=lambda w: ranks[w])
        best = progress.best
        better = ranks[weights][0] > -inf and (best is None or ranks[weights] > rank(best.value, best.loss))
        equal = better and best is not None and ranks[weights][0] == sign * best.value
        if better:
            self._write_weights(self.directory.best, weights)
            progress.best = BestWeights(
                sign * ranks[weights][0], results[weights].loss, progress.step, weights, progress.leg
            )
        progress.stale = 0 if better else progress.stale + (ranks[weights][0] > -inf)
        values = "  ".join(f"{w} {metric} {format_metric(metric, r.summary().get(metric))}" for w, r in results.items())
        if self.world.is_main:
            mark = "  best so far, by its loss" if equal else "  best so far" if better else ""
            self.reporter.notes.print(f"epoch {self.epoch:6.1f}  val {values}{mark}")

    def _write_weights(self, path: Path, weights: str) -> None:
        """Save the model with the raw or EMA weights, and with LoRA adapters merged."""
        if not self.world.is_main:
            return
        model: Any = self.engine.model
        model.report = initial_weights.origin_report(self.plan.facts.start, model.config)
        averaged = self.engine.ema.applied() if weights == "ema" and self.engine.ema is not None else nullcontext()
        with averaged, lora.merged_adapters(model):
            save_model(model.encoder() if isinstance(model, MaskedPatchModel) else model, path)
        self.progress.weights[path.name] = state.file_digest(path)

    def save_last_as_best(self) -> None:
        """Write both weight files from the last step, for a run without validation images."""
        self._write_weights(self.directory.last, "raw")
        self._write_weights(self.directory.best, "raw" if self.engine.ema is None else "ema")

    def _profiler(self) -> Any:
        if not self.plan.config.run.profile:
            return nullcontext(lambda: None)
        first, last = PROFILED_STEPS
        if (left := self.plan.steps - self.progress.step) < last:
            raise VitreousError(f"profile: records steps {first} to {last}, and only {left} steps are left")
        return StepProfiler(self.directory.path / "profile.json", self.engine.device)
