"""What a caller can get wrong before anything is sent."""

import numpy as np
import pytest

from dualpath_jax.rollout.request import GenerateCall

GOOD = {
    "tokens": [1, 2],
    "max_tokens": 3,
    "temperature": 0.5,
    "seed": 7,
    "stop_tokens": (4,),
    "forced_tokens": None,
    "tenant_salt": "salt",
}


def test_a_call_is_written_as_it_is():
    message = GenerateCall(**{**GOOD, "forced_tokens": [5, 6, 7]}).message()
    assert list(message.tokens) == [1, 2]
    assert (message.max_tokens, message.sampling.temperature, message.sampling.seed) == (3, 0.5, 7)
    assert (list(message.stop_tokens), list(message.forced_tokens)) == ([4], [5, 6, 7])
    assert message.tenant_salt == "salt"


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_arrays_are_token_ids_as_well(dtype):
    array = np.array([1, 2, 3], dtype)
    message = GenerateCall(**{**GOOD, "tokens": array, "stop_tokens": array, "forced_tokens": array}).message()
    assert list(message.tokens) == list(message.stop_tokens) == list(message.forced_tokens) == [1, 2, 3]


def test_no_tokens_are_the_schedulers_to_refuse():
    assert list(GenerateCall(**{**GOOD, "tokens": []}).message().tokens) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"tokens": [1, -1]}, r"tokens\[1\] = -1: expected a token id in \[0, vocab_size\)"),
        ({"tokens": [2**32]}, r"tokens\[0\] = 4294967296: expected a token id"),
        ({"tokens": [1.0, 2.0]}, r"tokens is an array of float64 with 1 axes: expected one axis of integers"),
        ({"tokens": [[1, 2]]}, r"tokens is an array of int64 with 2 axes"),
        ({"tokens": "text"}, r"tokens is an array of <U4"),
        ({"stop_tokens": [-5]}, r"stop_tokens\[0\] = -5"),
        ({"max_tokens": -1}, r"max_tokens = -1: expected an integer from 0 to 4294967295"),
        ({"max_tokens": 1.5}, r"max_tokens = 1\.5: expected an integer"),
        ({"seed": -1}, r"seed = -1: expected an integer from 0 to 18446744073709551615"),
        ({"seed": 2**64}, r"seed = 18446744073709551616"),
        ({"forced_tokens": []}, r"forced_tokens has 0 tokens: expected None or exactly max_tokens \(3\)"),
        ({"forced_tokens": [1, 2, -3]}, r"forced_tokens\[2\] = -3"),
    ],
)
def test_what_cannot_be_sent_is_named(changed, text):
    with pytest.raises(ValueError, match=text):
        GenerateCall(**{**GOOD, **changed}).message()
