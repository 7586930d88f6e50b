"""The summary that a run prints before training: data, model, length, device, memory and chosen settings."""

from typing import Any

from vitreous.data.dataset import DataSet
from vitreous.models.custom import CustomConfig
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.training.plan import Plan
from vitreous.training.user_parts import PARTS
from vitreous.utils.memory import free_memory, size_text
from vitreous.utils.progress import ProgressReporter, format_duration
from vitreous.utils.sizes import pair


def print_start_summary(data: DataSet, plan: Plan, reporter: ProgressReporter) -> None:
    config, parameters = plan.config, plan.parameters
    height, width = plan.size
    counts = ", ".join(f"{len(source):,} {name}" for name, source in data.splits.items())
    classes = f"{len(data.classes):,} classes" if data.classes else "used without labels"
    colours = "grey" if plan.model.channels == 1 else "RGB"
    trained = plan.trainable.parameters
    trained_text = "" if trained == parameters else f", of which {trained:,} are trained"
    passes = -(-plan.batch_size // plan.micro_batch)
    passes_text = f"in {passes} passes of {plan.micro_batch} each" if passes > 1 else "in one pass each"
    steps = f"{plan.steps:,} step{'' if plan.steps == 1 else 's'}"
    reporter.table(
        [
            ("data", f"{data.name}: {counts} images, {classes} ({data.split or 'no validation'})"),
            ("model", f"{describe_model(plan)}: {parameters:,} parameters{trained_text}, {height} x {width} {colours}"),
            *([("weights", f"start from {describe_initial_weights(plan)}")] if plan.facts.start else []),
            *([("objective", _describe_masking(plan))] if config.masks_patches else []),
            *([("code", own)] if (own := _own_code(plan)) else []),
            ("run", f"{steps} of {plan.batch_size:,} images ({config.schedule.duration}), {passes_text}"),
            *([("time", f"about {format_duration(plan.seconds)}; --budget changes it")] if plan.seconds else []),
            ("device", f"{plan.device}, {plan.precision}"),
            ("memory", f"{_memory_text(plan)}; {size_text(free_memory(plan.device))} are free"),
        ]
    )
    reporter.note_once((*data.notes, *plan.notes))
    if plan.choices:
        reporter.print("\nchosen from the data:", style="bold")
        reporter.table([(c.field, format_value(c.value), c.why) for c in plan.choices])
        reporter.print("")


def _describe_masking(plan: Plan) -> str:
    objective = plan.config.objective
    target = {
        "colour": "the mean colour (3 bits per channel)",
        "colours": "4 x 4 colours (3 bits per channel)",
        "pixels": "all pixels (squared error)",
    }[objective.patch_target]
    return f"{target} of masked patches; {100 * objective.mask_ratio:g}% of the patches are corrupted"


def _own_code(plan: Plan) -> str:
    """The loss, optimiser and augmentation of the user's own."""
    values = plan.config.flat()
    return ", ".join(f"{name} {values[name]}" for name in PARTS[1:] if getattr(plan.facts.parts, name) is not None)


def _memory_text(plan: Plan) -> str:
    if isinstance(plan.model, CustomConfig):
        return f"{size_text(plan.memory)} for weights and optimiser; activations of a model of your own are not known"
    return f"about {size_text(plan.memory)} for a step"


def describe_model(plan: Plan) -> str:
    model = plan.model
    if isinstance(model, CustomConfig):
        return model.code
    if isinstance(model, ViTConfig) and model.backbone is None:
        patch = pair(model.patch_size)[0]
        return f"a ViT of width {model.width}, depth {model.depth}, {model.heads} heads, patch size {patch}"
    if plan.facts.start is None:
        return plan.config.architecture.model or ""
    return "a BiT" if isinstance(model, BiTConfig) else f"a hybrid of width {model.width}, depth {model.depth}"


def describe_initial_weights(plan: Plan) -> str:
    """The name of the initial weights, and what was changed: the head, and the colours of the images."""
    assert plan.facts.start is not None
    conversions = {(1, 3): "; grey images are converted to RGB", (3, 1): "; images are converted to grey"}
    conversion = conversions.get((plan.facts.channels, plan.model.channels), "")
    default = any(choice.field == "start" for choice in plan.choices)
    change = (
        " (the default for few images; --from none: random weights, --from WEIGHTS: other weights)" if default else ""
    )
    head = f"with a new head for {plan.facts.classes:,} classes" if plan.facts.classes else "without a head"
    return f"{plan.facts.start.name} {head}{conversion}{change}"


def format_value(value: Any) -> str:
    """The value of a setting: floats with four digits, image sizes as "16 x 24", other tuples with commas, "none"."""
    if value is None:
        return "none"
    if isinstance(value, tuple | list):
        return (", " if isinstance(value[0], float) else " x ").join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
