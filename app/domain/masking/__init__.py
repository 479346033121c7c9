"""Masking: no secret that can be told as one is stored, answered or sent on.

`Masker` masks bytes, texts and JSON values and says where a stream may be cut. It does no I/O.
docs/concepts/masking.md says what it finds and what it cannot find.
"""

from app.domain.masking.cut import PROGRESS_BYTES
from app.domain.masking.exact import MAX_BYTES as MAX_EXACT_BYTES
from app.domain.masking.exact import MAX_VALUES as MAX_EXACT_VALUES
from app.domain.masking.exact import MIN_BYTES as MIN_EXACT_BYTES
from app.domain.masking.exact import Exact
from app.domain.masking.finder import EngineUnusable
from app.domain.masking.masker import Chunk, Counts, Health, Masked, Masker

__all__ = [
    "MAX_EXACT_BYTES",
    "MAX_EXACT_VALUES",
    "MIN_EXACT_BYTES",
    "PROGRESS_BYTES",
    "Chunk",
    "Counts",
    "EngineUnusable",
    "Exact",
    "Health",
    "Masked",
    "Masker",
]
