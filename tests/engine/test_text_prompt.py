"""A prompt in words: the model's own vocabulary makes it into ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_moetier.engine.selftest import job_for, run_plainly
from pytest_moetier.errors import InputError

TEXT = "moe"


@pytest.fixture(scope="module")
def worded(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a vocabulary: unknown, begin, end, SentencePiece's space, and the first bytes."""
    import gguf  # noqa: PLC0415  (the fixture of the tiny model skips without it)

    reader = gguf.GGUFReader(tiny)
    path = tmp_path_factory.mktemp("worded") / "worded.gguf"
    writer = gguf.GGUFWriter(path, "olmoe")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture", "general.alignment", "tokenizer", "olmoe.vocab_size")):
            writer.add_key_value(key, field.contents(), field.types[0])
    special = [b"<unk>", b"<s>", b"</s>", "\u2581".encode()]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *(b"<0x%02X>" % byte for byte in range(252))])
    writer.add_token_scores([0.0] * 256)
    writer.add_token_types([2, 3, 3, 1, *([6] * 252)])
    for add, number in ((writer.add_unk_token_id, 0), (writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2)):
        add(number)
    for one in reader.tensors:
        writer.add_tensor(one.name, one.data, raw_dtype=one.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_words_are_decoded_as_the_ids_that_the_vocabulary_has_for_them(worded: Path) -> None:
    ids = (1, 3, *(4 + byte for byte in TEXT.encode()))  # begin, the space before the first word, one id a byte
    spoken, counted = (
        next(one["ids"] for one in run_plainly(job_for(worded, prompt=prompt)) if one["event"] == "done")
        for prompt in (TEXT, ids)
    )
    assert spoken == counted


def test_words_without_a_vocabulary_are_refused(tiny: Path) -> None:
    with pytest.raises(InputError, match="vocabulary"):
        run_plainly(job_for(tiny, prompt=TEXT))
