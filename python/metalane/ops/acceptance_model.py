"""How probable it is that a drafted token is accepted: a model of the drafter's confidence, fitted while serving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .. import _core
from .._core import DFLASH2_MAX_LANES, AcceptanceCalibration
from ..errors import DTypeError
from ..graph_places import refuse
from .dflash2_selector import DFlash2VerifyRowsParams

__all__ = ["AcceptanceCalibration", "AcceptanceModel"]


def _values(given: Any, argument: str, dtype: np.dtype[Any]) -> list[Any]:
    """All of them, flat. NumPy alone would cut counts off, and take None for NaN."""
    op = "AcceptanceModel.observe_verified"
    array = np.asarray(given)
    if array.size == 0:
        return []
    if dtype.kind == "u":
        if array.dtype.kind not in "iu":
            refuse(op, argument, "integers", f"{array.dtype}", DTypeError)
        for worst in (array.min(), array.max()):
            if not 0 <= worst < 1 << 32:
                refuse(op, argument, "0 to 2^32 - 1", str(worst))
    elif array.dtype.kind not in "fiu" and array.dtype != ml_dtypes.bfloat16:
        refuse(op, argument, "numbers", f"{array.dtype}", DTypeError)
    return array.astype(dtype).reshape(-1).tolist()


class AcceptanceModel:
    """P(position p is accepted, given that all before it were) = sigmoid(slope * logit(confidence) + intercept[p]).

    That is what `dispatch_dflash2_verify_rows` computes, confidences clamped likewise; `verify_rows_params` gives it
    the numbers. A new model has slope 1 and intercepts 0: a confidence is the probability.

    forgetting: what the weight of every observation is multiplied with by each `fit`; above 0, at most 1.
    damping: pull towards slope 1 and intercepts 0, in observations; above 0. It keeps the fit finite where what
    happened can be told apart exactly, and where there is little.
    capacity: observations kept; the oldest go first.
    """

    def __init__(self, *, forgetting: float = 0.99, damping: float = 1.0, capacity: int = 4096) -> None:
        self._model = _core.AcceptanceModel(forgetting, damping, capacity)

    def observe(self, position: int, confidence: float, accepted: bool) -> None:
        """One drafted token that was tested. Raises ArgumentError for a confidence that is not within 0 to 1."""
        self._model.observe(position, confidence, accepted)

    def observe_verified(self, confidence: Any, accepted: Any, verify_rows: Any) -> None:
        """What one `dispatch_speculative_verify` tested.

        confidence f32 [L, P], accepted and verify_rows u32 [L]: buffers (it waits for them) or arrays. The first
        drafted token of a lane that did not stay was rejected; those behind it were not tested. Raises ArgumentError
        before anything is taken in.
        """
        self._model.observe_verified(
            _values(confidence, "confidence", np.dtype(np.float32)),
            _values(accepted, "accepted", np.dtype(np.uint32)),
            _values(verify_rows, "verify_rows", np.dtype(np.uint32)),
        )

    def fit(self) -> None:
        """The weighted maximum of likelihood and damping over what is kept; then every weight shrinks by `forgetting`.

        Newton steps (iteratively reweighted least squares) from the last fit, halved while they lead uphill.
        """
        self._model.fit()

    @property
    def slope(self) -> float:
        return self._model.slope

    @property
    def intercepts(self) -> list[float]:
        """Of each of the 15 positions."""
        return self._model.intercepts

    def probability(self, position: int, confidence: float) -> float:
        """That the position is accepted, given that all before it were."""
        return self._model.probability(position, confidence)

    def calibration(self) -> AcceptanceCalibration:
        """How the probabilities given so far compare with what happened."""
        return self._model.calibration()

    def verify_rows_params(
        self, costs: Sequence[float], *, rows_per_lane: int, maximum: Sequence[int]
    ) -> DFlash2VerifyRowsParams:
        """For `dispatch_dflash2_verify_rows`: costs of 0 to 64 rows in all, and the most rows of each lane."""
        lanes = len(maximum)
        return DFlash2VerifyRowsParams.with_costs(
            costs,
            slope=self.slope,
            intercept=self.intercepts,
            lanes=lanes,
            rows_per_lane=rows_per_lane,
            every_row=0,
            maximum=[*maximum, *[0] * (DFLASH2_MAX_LANES - lanes)],
        )

    def __repr__(self) -> str:
        intercepts = ", ".join(f"{value:.3g}" for value in self.intercepts)
        return f"AcceptanceModel(slope={self.slope:.3g}, intercepts=[{intercepts}])"
