"""What a typed program writes. mypy reads it, strictly, and finds each error that an ignore names; nothing runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np

import twofour
from twofour import documents


def see(phase: str, done: int, total: int) -> Optional[bool]:
    return done > total


def results(source: Path, artifact: str) -> tuple[str, int, float, bool]:
    made: documents.Convert = twofour.convert(source, artifact, to="v7", jobs=2, max_shard_size="5GB", progress=see)
    figures = twofour.eval(artifact, text="book.txt", context=16, progress=see)
    made_text: str = twofour.generate(artifact, "Once", max_tokens=3)["text"]
    recipe: str = twofour.recipes("v7-experts")["text"]
    names: list[str] = [one["name"] for one in twofour.recipes()["recipes"]]
    print(made_text, recipe, names, twofour.card(artifact)["text"], twofour.synth("out", "tiny")["bytes"])
    return made["layout"], made["bytes_read"], figures["loss"], twofour.lint(artifact, select=["index-*"])["sound"]


def objects(artifact: str, hidden: Any) -> None:
    with twofour.open(artifact) as checkpoint:
        module = checkpoint["model.layers.0.mlp.down_proj"]
        values: np.ndarray[Any, Any] = np.asarray(module)
        print(module.dtype, len(module), values.shape, checkpoint.tensors["x"].tobytes(), checkpoint.get("x"))
    with twofour.Artifact(artifact) as opened, opened.load(0) as layer:
        print(layer(hidden, *opened.route(0, hidden, top_k=2)))
    with twofour.Model(artifact) as model, model.sequence() as sequence:
        tokens: list[int] = model.tokenizer.encode("text")
        print(sequence.append(tokens).argmax(), model.generate("text", 3, progress=see))
    try:
        twofour.convert("a", "b", to="v7")
    except twofour.NotFoundError as error:
        print(error.filename)


def errors(source: str) -> None:
    twofour.convert(source, "out", to="v8")  # type: ignore[arg-type]
    twofour.convert(source, "out", max_shard="5GB")  # type: ignore[call-arg]
    twofour.convert(source, "out", force="yes")  # type: ignore[arg-type]
    twofour.synth("out")  # type: ignore[call-arg]
    twofour.lint(source)["sond"]  # type: ignore[typeddict-item]
    twofour.layout_parts("v7", (1, 16))  # type: ignore[arg-type]
