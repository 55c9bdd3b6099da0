"""BERT, as far as sentence vectors need it: token ids in, one vector per text out. Pure functions of tensors.

Weights go by the names they have in files of Hugging Face's ``BertModel``. Nothing here reads a file or splits a text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from dgz.errors import DataError


@dataclass(frozen=True)
class BertShape:
    """What the weights of a BERT do not say about it by themselves: layers, heads, and the ε of its normalisation."""

    n_layers: int
    n_heads: int
    epsilon: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> "BertShape":
        """Read ``config.json``; what these functions do not compute is refused with a sentence."""
        expected = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
        for key, value in expected.items():
            if config.get(key, value) != value:
                raise DataError(f"{where}: {key} must be {value}, found {config[key]!r}.")
        try:
            return cls(
                int(config["num_hidden_layers"]), int(config["num_attention_heads"]), float(config["layer_norm_eps"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{where} does not describe a BERT: {error!r}.") from error


def bert_states(weights: Mapping[str, Tensor], shape: BertShape, ids: Tensor, mask: Tensor) -> Tensor:
    """Last hidden states of a BERT (Devlin et al., 2019) without dropout.

    Parameters
    ----------
    weights : mapping of str to tensor
        ``embeddings.*`` and ``encoder.layer.*``.
    shape : BertShape
    ids : tensor of shape (n, n_tokens), int64
        Token ids, of one segment.
    mask : tensor of shape (n, n_tokens), bool
        Which of them are no padding; at least one in each row.

    Returns
    -------
    tensor of shape (n, n_tokens, d)
    """

    def linear(x: Tensor, name: str) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def normalised(x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], shape.epsilon)

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], shape.n_heads, -1).transpose(1, 2)  # (n, n_heads, n_tokens, d_head)

    positions = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    x = functional.embedding(ids, weights["embeddings.word_embeddings.weight"]) + positions + segment
    x = normalised(x, "embeddings.LayerNorm")
    for layer in range(shape.n_layers):
        at = f"encoder.layer.{layer}"
        query, key, value = (heads(linear(x, f"{at}.attention.self.{part}")) for part in ("query", "key", "value"))
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        mixed = linear(mixed.transpose(1, 2).flatten(2), f"{at}.attention.output.dense")
        x = normalised(x + mixed, f"{at}.attention.output.LayerNorm")
        wide = functional.gelu(linear(x, f"{at}.intermediate.dense"))
        x = normalised(x + linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return x


def mean_of_tokens(states: Tensor, mask: Tensor) -> Tensor:
    """Mean of each text's states over the tokens that are no padding.

    Examples
    --------
    >>> import torch
    >>> states = torch.tensor([[[2.0], [4.0], [9.0]]])
    >>> mean_of_tokens(states, torch.tensor([[True, True, False]]))
    tensor([[3.]])
    """
    kept = mask.unsqueeze(-1).to(states.dtype)
    return (states * kept).sum(dim=1) / kept.sum(dim=1)
