"""Loading Hugging Face folders: formats, FP8 block scales, and the text of every error."""

import json
import logging
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dualpath_configs import ModelSpec
from dualpath_jax.models import CheckpointError, flatten, load_hugging_face, named_parameters, weights_id
from dualpath_jax.models.tensor_files import list_tensors


@pytest.fixture
def folder(golden_folder, tmp_path):
    """A copy of a golden checkpoint, to be damaged."""
    return shutil.copytree(golden_folder / "plain", tmp_path / "checkpoint")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def change_config(folder, **changed):
    (folder / "config.json").write_text(json.dumps(config_of(folder) | changed))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def load(folder, **chosen):
    return load_hugging_face(folder, ModelSpec.from_hugging_face(config_of(folder)).model_copy(update=chosen))


def refused(folder, expected):
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


GATE = "model.layers.1.mlp.experts.5.gate_proj.weight"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_sources_are_widened(folder, dtype):
    def narrow(tensors):
        tensors.update({name: value.astype(dtype) for name, value in tensors.items()})

    whole = dict(named_parameters(load(folder)))
    change_tensors(folder, narrow)
    for path, parameter in named_parameters(load(folder)):
        assert np.array_equal(parameter[...], np.asarray(whole[path][...]).astype(dtype).astype(np.float32))


def test_weights_become_the_compute_dtype(folder):
    dtypes = {
        path: parameter[...].dtype.name for path, parameter in named_parameters(load(folder, compute_dtype="bfloat16"))
    }
    assert dtypes.pop("moe.ffn.router_bias") == "float32"
    assert set(dtypes.values()) == {"bfloat16"}


def quantized(values, block):
    """FP8 values and the inverse scale of each block, computed block by block."""
    rows, columns = (-(-size // step) for size, step in zip(values.shape, block, strict=True))
    stored, scales = np.zeros(values.shape, ml_dtypes.float8_e4m3fn), np.zeros((rows, columns), np.float32)
    for i in range(rows):
        for j in range(columns):
            part = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
            scales[i, j] = np.abs(values[part]).max() / 448
            stored[part] = (values[part] / scales[i, j]).astype(ml_dtypes.float8_e4m3fn)
    return stored, scales


@pytest.mark.parametrize("block", [(128, 128), (16, 8), (10, 12)])
def test_fp8_block_scales_are_undone(folder, block):
    """Each value within the 3 bits of its mantissa; blocks that are cut short at the edge included."""

    def quantize(tensors):
        for name in [name for name in tensors if "_proj" in name]:
            tensors[name] *= 10.0 ** np.arange(tensors[name].shape[0])[:, None].clip(0, 6)
            tensors[name], tensors[name + "_scale_inv"] = quantized(tensors[name], block)

    change_config(folder, quantization_config={"quant_method": "fp8", "weight_block_size": list(block)})
    original = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    original = original * 10.0 ** np.arange(original.shape[0])[:, None].clip(0, 6)
    change_tensors(folder, quantize)
    loaded = np.asarray(dict(named_parameters(load(folder)))["dense.ffn.up"][...][0]).T
    scales = load_file_scales(folder).repeat(block[0], 0).repeat(block[1], 1)[: loaded.shape[0], : loaded.shape[1]]
    # Half a step of 3 mantissa bits; below the smallest normal number (2^-6) steps are of 2^-9.
    allowed = np.maximum(np.abs(original) * 2.0**-4, scales * 2.0**-10) * 1.001
    assert np.all(np.abs(loaded - original) <= allowed)
    assert np.any(loaded != original)


def load_file_scales(folder):
    with safe_open(folder / "model.safetensors", framework="np") as file:
        return file.get_tensor("model.layers.0.mlp.up_proj.weight_scale_inv")


def test_prediction_layers_are_skipped_and_logged(folder, caplog):
    def add(tensors):
        tensors["model.layers.2.eh_proj.weight"] = np.zeros((4, 8), np.float32)
        tensors["model.layers.2.self_attn.o_proj.weight"] = np.zeros((4, 8), np.float32)

    change_tensors(folder, add)
    refused(folder, "tensor model.layers.2.eh_proj.weight is superfluous (and 1 more): expected no such tensor")
    change_config(folder, num_nextn_predict_layers=1)
    with caplog.at_level(logging.INFO):
        load(folder)
    assert "skipped 2 tensors of multi-token-prediction layers" in caplog.text


def test_missing_tensor(folder):
    change_tensors(folder, lambda tensors: tensors.pop(GATE))
    refused(folder, f"{folder}: tensor {GATE} is missing: expected it with shape (16, 32)")


def test_superfluous_tensor(folder):
    change_tensors(folder, lambda tensors: tensors.update(extra=np.zeros(3, np.float32)))
    refused(folder, f"{folder / 'model.safetensors'}: tensor extra is superfluous: expected no such tensor")


def test_wrong_shape(folder):
    change_tensors(folder, lambda tensors: tensors.update({GATE: np.zeros((16, 31), np.float32)}))
    refused(folder, f"{folder / 'model.safetensors'}: tensor {GATE} has shape (16, 31): expected (16, 32)")


def test_wrong_dtype(folder):
    change_tensors(folder, lambda tensors: tensors.update({GATE: np.zeros((16, 32), np.int32)}))
    refused(folder, f"tensor {GATE} has dtype I32: expected one of F32, F16, BF16, F8_E4M3")


def test_fp8_without_scales(folder):
    change_tensors(folder, lambda tensors: tensors.update({GATE: np.zeros((16, 32), ml_dtypes.float8_e4m3fn)}))
    refused(folder, f"tensor {GATE} is FP8: expected {GATE}_scale_inv beside it")


def test_scales_without_fp8(folder):
    change_tensors(folder, lambda tensors: tensors.update({GATE + "_scale_inv": np.ones((1, 1), np.float32)}))
    refused(folder, f"tensor {GATE}_scale_inv is superfluous")


def test_truncated_file(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    refused(folder, "within the file (is it truncated?)")
    file.write_bytes(file.read_bytes()[:100])
    refused(folder, f"{file}: header of")
    file.write_bytes(b"")
    refused(folder, f"{file}: header of 0 bytes in 0: expected a safetensors file")


def test_any_damage_to_the_header_is_one_clear_error(folder):
    """Each of many single flipped bits either leaves tensors that fit their file, or is a CheckpointError."""
    file = folder / "model.safetensors"
    content, draw = file.read_bytes(), np.random.default_rng(0)
    header_bytes, errors = int.from_bytes(content[:8], "little"), []
    for _ in range(300):
        damaged = bytearray(content)
        damaged[draw.integers(0, 8 + header_bytes)] ^= 1 << int(draw.integers(0, 8))
        file.write_bytes(damaged)
        try:
            for tensor in list_tensors(folder).values():
                tensor.read()
        except CheckpointError as error:
            errors.append(str(error))
    assert len(errors) > 100
    assert all(str(file) in error for error in errors)


def test_fp8_norm_is_refused(folder):
    norm = {"model.norm.weight": np.ones(32, ml_dtypes.float8_e4m3fn)}
    change_tensors(folder, lambda tensors: tensors.update(norm))
    refused(folder, "tensor model.norm.weight is FP8: expected that of matrices only")


def test_no_weights_and_no_config(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, f"{folder}: no *.safetensors file: expected a Hugging Face checkpoint")
    spec = ModelSpec.from_hugging_face(config_of(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json: .*: expected a JSON object"):
        load_hugging_face(folder, spec)


def test_config_of_another_model(folder):
    spec = ModelSpec.from_hugging_face(config_of(folder))
    change_config(folder, routed_scaling_factor=2.0)
    with pytest.raises(CheckpointError, match=r"config.json: routed_scaling_factor = 2.0: expected 1.0, as the model"):
        load_hugging_face(folder, spec)
    change_config(folder, hidden_act="gelu")
    with pytest.raises(CheckpointError, match=r"config.json: hidden_act = 'gelu'"):
        load_hugging_face(folder, spec)


def test_index_that_names_what_is_not_there(golden_folder, tmp_path):
    folder = shutil.copytree(golden_folder / "like_v3", tmp_path / "checkpoint")
    index_file = folder / "model.safetensors.index.json"
    index = json.loads(index_file.read_text())
    index["weight_map"]["model.norm.weight"] = "model-00001-of-00008.safetensors"
    index_file.write_text(json.dumps(index))
    refused(folder, "tensor model.norm.weight is here: model.safetensors.index.json has it in model-00001-of")
    (folder / "model-00003-of-00008.safetensors").unlink()
    refused(folder, f"{folder / 'model-00003-of-00008.safetensors'}: no such file: model.safetensors.index.json names")


def test_weights_id_follows_every_byte(folder, golden_folder, tmp_path):
    first = weights_id(folder)
    assert len(first) == 64
    assert first == weights_id(golden_folder / "plain")
    (folder / "README.md").write_text("not the weights")
    assert weights_id(folder) == first
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert weights_id(folder) != first
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no files: expected a checkpoint"):
        weights_id(tmp_path / "empty")


def test_loading_twice_is_bitwise_equal(folder):
    both = zip(flatten(load(folder))[1], flatten(load(folder))[1], strict=True)
    assert all(np.array_equal(a, b) for a, b in both)
