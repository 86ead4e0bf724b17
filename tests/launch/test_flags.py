"""What the command lines say, and what they refuse."""

import pytest

from dualpath_jax.launch.flags import UsageError, parse_override


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("engines_per_node=4", "engines_per_node", 4),
        ("network.snic_bytes_per_s=3e7", "network.snic_bytes_per_s", 3e7),
        ("mode.layerwise=false", "mode.layerwise", False),
        ("engine.prefill_token_buckets=[128, 512]", "engine.prefill_token_buckets", [128, 512]),
        ("mode={layerwise = true}", "mode", {"layerwise": True}),
        ('model.kv_dtype="bfloat16"', "model.kv_dtype", "bfloat16"),
        ("model.kv_dtype=bfloat16", "model.kv_dtype", "bfloat16"),
        ("storage.url=file:///tmp/a=b#c", "storage.url", "file:///tmp/a=b#c"),
        ("storage.url=", "storage.url", ""),
        ("storage.url='4'", "storage.url", "4"),
        ("a=1\nb = 2", "a", "1\nb = 2"),
    ],
)
def test_a_value_is_what_toml_makes_of_it_or_a_word(text, key, value):
    assert parse_override(text) == (key, value)
    assert type(parse_override(text)[1]) is type(value)


@pytest.mark.parametrize("text", ["", "engines_per_node", "=4"])
def test_an_override_without_a_key_or_a_value_is_refused(text):
    with pytest.raises(UsageError, match=f"--set={text}: expected key=value, such as --set=engines_per_node=4"):
        parse_override(text)
