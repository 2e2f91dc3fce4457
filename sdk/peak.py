"""The most memory that a device's process takes while it trains a plan.

Between rounds a process holds itself, the graph, its data, the weights with their
gradients, and what the runtime keeps for activations. On top of that comes the largest
of four moments: the plan tests itself, once; the last blob of a round has come and is
copied out of its assembly; the last step is done and delta_y is made; the update is
written to the disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from kellet.sdk.plan import Plan
from kellet.sdk.plan.schemes import FLOAT32, Int8Layout

__all__ = ["Peak", "peak_of"]

# Measured with Python 3.11, NumPy 2 and onnxruntime 1.2x on x86-64, with `kellet run`.
_PROCESS = 84_100_000  # Python, NumPy, onnxruntime, the command, after a first step
_GRAPH = 516  # bytes of session for each byte of the encoded step
_SAVING = 3_000_000  # SQLite's pages, at most
# What the runtime keeps of the plan's figures: (of one sample's activations, weight-shaped
# temporaries for the most part; of what each further sample adds). In float32 it fuses away
# half of the former, and holds a second arena with its pattern for the latter; int8 weights
# are decoded into memory that is freed and found again in pieces.
_KEPT = {True: (0.4, 1.9), False: (1.9, 1.1)}


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Bytes of a process: what stays, and what each moment adds."""

    process: int
    graph: int
    data: int
    weights: int
    activations: int
    testing: int
    fetching: int
    training: int
    saving: int

    @property
    def resting(self) -> int:
        """Between two rounds."""
        return self.process + self.graph + self.data + self.weights + self.activations

    @property
    def total(self) -> int:
        """At the worst moment."""
        return self.resting + max(self.testing, self.fetching, self.training, self.saving)


def peak_of(
    plan: Plan,
    *,
    scheme: str,
    controls: bool,
    int8_shift: bool,
    vectors: int = 0,
    batch: int,
    data_bytes: int,
    sent: int,
    received: int,
    control: int,
) -> Peak:
    """The memory of training ``plan`` in ``scheme``.

    ``controls``: under an algorithm with a c_i; ``int8_shift``: with its shift as int8 rows
    where the weights are float32. ``vectors``: what its steps hold further, each float32
    [n_train]. ``data_bytes``: of the samples. ``sent``, ``received``, ``control``:
    bytes of the update, the model and the control as they travel. Hold-out, option I and
    error feedback are not counted.
    """
    is_float = scheme == FLOAT32
    vector, trained = 4 * plan.n_update, 4 * plan.n_train
    if is_float:
        weights = 4 * plan.n_params + trained
        # x, delta_y beside it, and c with the shift that is made of it
        shift = plan.n_train if int8_shift else trained
        training = received + vector + controls * (control + shift)
    else:
        layout = Int8Layout.of(plan.manifest, scheme)
        rows = layout.n_weights + 4 * layout.n_scales
        weights = layout.state_bytes + vector + 4 * layout.n_rest_train
        # y_0, c with the shift, and delta_y out of the gradients' memory
        training = rows + min(vector, sent) + controls * (control + rows)
    # What was coded (delta_y itself, in float32), c as long as delta_c is derived from it, and
    # the update's bytes; c_i goes from the disk to the disk in parts.
    saving = min(vector, sent) + sent + min(sent, _SAVING) + controls * control
    training += vectors * trained
    return Peak(
        process=_PROCESS,
        graph=_GRAPH * len(plan.step_graph),
        data=data_bytes,
        weights=weights,
        activations=_activations(plan, scheme, batch),
        # Blobs wait while scores are compared at the initial model, in float32 sessions that
        # keep half of the plan's temporaries; int8 weights are tested with less than they train in.
        testing=received + controls * control + is_float * (4 * plan.n_params + _kept(plan)),
        fetching=max(2 * received, received + 2 * control),
        training=training,
        saving=saving,
    )


def _kept(plan: Plan) -> int:
    return plan.manifest.peak_bytes(1) // 2


def _activations(plan: Plan, scheme: str, batch: int) -> int:
    variants = {variant.scheme: variant for variant in plan.manifest.variants}
    of_step = variants.get(scheme, plan.manifest)
    one = of_step.peak_bytes(1)
    first, further = _KEPT[scheme == FLOAT32]
    return int(first * one + further * max(0, of_step.peak_bytes(batch) - one))
