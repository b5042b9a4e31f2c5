"""The router as a prefetch advisor: what is expected, how good that is, and how it is delivered (paper section 7)."""

from pytest_moetier.advice.deliver import to_lists
from pytest_moetier.advice.file import FORMAT, FORMAT_LINES, load_advice, write_advice
from pytest_moetier.advice.predictors import (
    PREDICTORS,
    markov,
    noisy_oracle,
    oracle,
    predict,
    predictor_named,
    previous_token,
    recall_law,
)
from pytest_moetier.advice.records import KINDS, Advice, Recall, label, make_advice, recall, withhold

__all__ = [
    "FORMAT",
    "FORMAT_LINES",
    "KINDS",
    "PREDICTORS",
    "Advice",
    "Recall",
    "label",
    "load_advice",
    "make_advice",
    "markov",
    "noisy_oracle",
    "oracle",
    "predict",
    "predictor_named",
    "previous_token",
    "recall",
    "recall_law",
    "to_lists",
    "withhold",
    "write_advice",
]
