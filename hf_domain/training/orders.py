"""The strategies of Adapt-and-Distill as plans: lists of training steps.

Section 3.1 of AdaLM (Yao et al., Findings of ACL 2021) compares four ways from a large general encoder to a small one
of a domain. Each is a list of steps here, and each step leaves a checkpoint that AutoModel loads.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hf_domain.training.run_folder import read_record

Strategy = Literal["from_scratch", "distill_then_adapt", "adapt_then_distill", "adapt_and_distill"]


@dataclass(frozen=True)
class StrategyStep:
    """One step of a strategy.

    Args:
        kind: "make" a student, "adapt" a model to its corpus by masked LM, or "distill".
        model: Checkpoint that the step starts from; None makes the student from `teacher`.
        teacher: Checkpoint that the student is made from or learns from.
        expand: Whether the step adds the rows of the expanded vocabulary to its model.
    """

    kind: Literal["make", "adapt", "distill"]
    output_dir: str
    model: str | None = None
    teacher: str | None = None
    corpus: Literal["domain", "general"] | None = None
    steps: int = 0
    expand: bool = False


def make_plan(
    strategy: Strategy,
    *,
    teacher: str,
    output_dir: str,
    student: str | None = None,
    expand: bool = False,
    teacher_steps: int,
    student_steps: int,
    masked_lm_steps: int = 0,
) -> list[StrategyStep]:
    """List the steps of a strategy.

    All strategies share the adapted teacher, whose folder is next to theirs. A strategy divides `student_steps` evenly
    among its steps, so that the student costs the same in each.

    Args:
        strategy: "from_scratch": masked LM alone. "distill_then_adapt": distill from the general teacher, then masked
            LM on the domain. "adapt_then_distill": distill from an adapted teacher. "adapt_and_distill" (the paper's
            proposal): like distill_then_adapt, then distill from the adapted teacher.
        teacher: Checkpoint of the general teacher.
        output_dir: Folder of all strategies.
        student: Checkpoint that the student starts from; None makes it from the teacher.
        expand: Whether teacher and student get the expanded vocabulary, each in its first step on the domain.
        teacher_steps: Optimizer steps that adapt the teacher.
        student_steps: Optimizer steps of the student in total.
        masked_lm_steps: Optimizer steps of masked LM after the last distillation, which leaves the student's last layer
            and LM head untrained. 0 as in the paper: fine-tuning trains the layer and needs no LM head.

    Raises:
        ValueError: The strategy is unknown, or has too few steps to divide.
    """
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy must be one of {', '.join(get_args(Strategy))}, but is {strategy!r}")
    parts = {"distill_then_adapt": 2, "adapt_and_distill": 3}.get(strategy, 1)
    if student_steps < parts:
        raise ValueError(
            f"student_steps must be at least {parts} for {strategy}, which divides them among {parts} steps, but "
            f"is {student_steps}"
        )
    adapts_teacher = strategy.startswith("adapt")
    if adapts_teacher and teacher_steps < 1:
        raise ValueError(
            f"teacher_steps must be at least 1 for {strategy}, which adapts the teacher, but is {teacher_steps}"
        )
    each, rest = divmod(student_steps, parts)

    folder = Path(output_dir, strategy)
    adapted_teacher = str(Path(output_dir, "adapted-teacher"))
    steps = []
    if adapts_teacher:
        steps.append(StrategyStep("adapt", adapted_teacher, teacher, None, "domain", teacher_steps, expand))

    early = strategy in ("distill_then_adapt", "adapt_and_distill")  # first learns from the general teacher
    model = str(folder / "student")
    source = adapted_teacher if strategy == "adapt_then_distill" else teacher
    # A student made from the adapted teacher already has the new rows; an existing student needs them.
    needs_rows = expand and strategy == "adapt_then_distill" and student is not None
    steps.append(StrategyStep("make", model, student, source, expand=needs_rows))

    def follow(kind: Literal["adapt", "distill"], name: str, count: int, **options: Any) -> None:
        nonlocal model
        steps.append(StrategyStep(kind, str(folder / name), model, steps=count, **options))
        model = steps[-1].output_dir

    if early:
        follow("distill", "distilled", each + rest, teacher=teacher, corpus="general")
    if early or strategy == "from_scratch":
        count = each if early else student_steps
        follow("adapt", "adapted", count, corpus="domain", expand=expand)
    if adapts_teacher:
        follow("distill", "adapted-distilled", each, teacher=adapted_teacher, corpus="domain")
        if masked_lm_steps:
            follow("adapt", "masked-lm", masked_lm_steps, corpus="domain")
    return steps


def describe_strategy(steps: list[StrategyStep]) -> str:
    """Format the steps of a strategy, one line each."""
    lines = []
    for number, step in enumerate(steps, 1):
        if step.kind == "make":
            what = f"make {step.output_dir} from {step.model or step.teacher}"
        elif step.kind == "adapt":
            what = f"adapt {step.model} for {step.steps} steps of masked LM -> {step.output_dir}"
        else:
            what = f"distill {step.teacher} into {step.model} for {step.steps} steps ({step.corpus} text) -> "
            what += step.output_dir
        expansion = ", with the expanded vocabulary" if step.expand else ""
        done = "   [done]" if read_record(Path(step.output_dir)).get("finished") else ""
        lines.append(f"{number}. {what}{expansion}{done}")
    return "\n".join(lines)
