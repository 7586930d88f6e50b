"""The restricted unpickler for CIFAR batches: damaged pickles are errors of bounded length."""

import pytest

from vitreous import VitreousError
from vitreous.data.array_pickle import load_array_pickle


def test_a_damaged_pickle_is_not_quoted_in_full() -> None:
    """Python's own message repeats the text that is not a number, which may be megabytes of pixels."""
    with pytest.raises(VitreousError, match="not a readable pickle, or truncated") as error:
        load_array_pickle(b"F" + 100_000 * b"\x98pixels" + b"\n.")
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)
