"""Mistakes in attention that their wrong numbers give away, in the words of the field."""

from __future__ import annotations

import numpy as np

from tpulab.exercises.attention_mistakes import (
    Mask,
    carried_on,
    changed,
    over_queries,
    padded_with_zeros,
    seen_before,
    streamed,
    to_bfloat16,
    unequal,
    up_to_diagonal,
    values_beyond_the_edge,
    whole,
    within_the_block,
)
from tpulab.exercises.model import Suspect


def softmax_suspects(mask: Mask | None = None) -> tuple[Suspect, ...]:
    """Mistakes of any attention: shift, scale, division."""
    return (
        Suspect(
            "the largest score is not subtracted before the exponential: float32 overflows from "
            "exp(89) on",
            "subtract the maximum of the row; the quotient stays what it is",
            whole(changed(mask, shift=False)),
        ),
        Suspect(
            "the running maximum starts at 0: where all scores are far below zero every "
            "exponential vanishes, and 0 is divided by 0",
            "start the maximum at -jnp.inf",
            whole(changed(mask, floor=0.0)),
        ),
        Suspect(
            "the scores are not scaled: the factor 1/sqrt(head_dim) is missing",
            "multiply the scores by 1 / math.sqrt(head_dim)",
            whole(changed(mask, scale_power=0.0)),
        ),
        Suspect(
            "the scores are scaled twice: by 1/head_dim, where 1/sqrt(head_dim) is asked for",
            "scale once: the scores, which are float32",
            whole(changed(mask, scale_power=2.0)),
        ),
        Suspect(
            "the sum of the exponentials is not divided by: the weights of a row do not add up "
            "to 1",
            "divide the accumulator by the sum, once, when all keys are in",
            whole(changed(mask, divide=False)),
        ),
        Suspect(
            "the scores are rounded to bfloat16 before the exponential, which turns an error of "
            "their last digit into a factor",
            "ask the product for preferred_element_type=jnp.float32",
            whole(changed(mask, store=to_bfloat16)),
        ),
        Suspect(
            "the queries are scaled in bfloat16, which rounds them before the first product, and "
            "the exponential turns an error of their last digit into a factor",
            "scale the scores, which are float32, or turn the queries into float32 before",
            whole(changed(mask, scaled=to_bfloat16)),
        ),
    )


OVER_QUERIES = Suspect(
    "the softmax runs over the queries, along the wrong axis",
    "the weights of one query add up to 1: reduce over axis=1 with keepdims=True",
    over_queries,
)


def online_suspects(mask: Mask | None = None) -> tuple[Suspect, ...]:
    """Mistakes of the online update and of what is carried between steps."""
    live = None if mask is None else up_to_diagonal
    return (
        Suspect(
            "the rescale is forgotten: what was added under an older maximum keeps its old weight",
            "multiply sum and accumulator by exp(old maximum - new maximum) before you add",
            streamed(mask=mask, rescale_sum=False, rescale_acc=False),
        ),
        Suspect(
            "the accumulator is not rescaled, though the sum is",
            "multiply the accumulator by the same exp(old maximum - new maximum)",
            streamed(mask=mask, rescale_acc=False),
        ),
        Suspect(
            "the sum is not rescaled, though the accumulator is",
            "multiply the sum by the same exp(old maximum - new maximum)",
            streamed(mask=mask, rescale_sum=False),
        ),
        Suspect(
            "the rescale is forgotten: each block of keys is shifted by its own maximum, and they "
            "are added as if it were the same",
            "carry the maximum from step to step, and rescale what was added before",
            streamed(
                mask=mask, live=live, local_maximum=True, rescale_sum=False, rescale_acc=False
            ),
        ),
        Suspect(
            "maximum, sum and accumulator are kept in bfloat16 between the steps: 8 bits of "
            "mantissa lose what a block adds, and shift the exponentials",
            "keep them in float32 scratch, and cast once, when you store the result",
            streamed(mask=mask, live=live, store=to_bfloat16),
        ),
        Suspect(
            "maximum, sum and accumulator go on from one block of queries into the next: they are "
            "cleared only once",
            "clear them in the first step of the keys of every block: pl.program_id(2) == 0",
            carried_on(mask),
        ),
    )


PADDING_COUNTS = Suspect(
    "keys beyond the ragged edge have the score 0, and exp(0 - maximum) is not 0",
    "give them the score -jnp.inf",
    padded_with_zeros,
)
CAUSAL = (
    Suspect(
        "the last queries are NaN: the values of ragged keys are read as data, for 0 × NaN is NaN, "
        "or no step writes the last block of queries",
        "set rows of the value beyond the edge to zero with jnp.where; round the grid up with "
        "pl.cdiv",
        values_beyond_the_edge,
    ),
    Suspect(
        "the mask leaves the scores above the diagonal at 0, and exp(0 - maximum) is not 0",
        "give them the score -jnp.inf",
        whole(changed(seen_before, fill=0.0)),
    ),
    Suspect(
        "the mask leaves out the diagonal: the first query sees no key at all, and its row is "
        "0 divided by 0",
        "a query sees its own key as well: column <= row",
        whole(changed(lambda row, column: column < row)),
    ),
    Suspect(
        "the mask is upside down: a query sees the keys after it",
        "keep a score where column <= row",
        whole(changed(lambda row, column: column >= row)),
    ),
    Suspect(
        "nothing is masked: every query sees every key",
        "give the scores above the diagonal the value -jnp.inf",
        whole(changed()),
    ),
    Suspect(
        "scores above the diagonal count: blocks are skipped, but the block that the diagonal "
        "crosses is not masked",
        "skip blocks that are dead, and mask the elements of those that are not",
        streamed(live=up_to_diagonal),
    ),
    Suspect(
        "the mask compares positions inside the blocks, without where the blocks begin",
        "add pl.program_id(1) * block_q to the rows and pl.program_id(2) * block_k to the columns",
        within_the_block,
    ),
    Suspect(
        "live blocks are skipped: the causal test compares block indices, and the blocks of "
        "queries and keys have different sizes",
        "compare positions: the first key of the block, j * block_k, with the last query, "
        "(i + 1) * block_q - 1",
        unequal(live=lambda block, step, block_q, block_k: step <= block),
    ),
    Suspect(
        "a live step gets the wrong block of keys: the index map stops at the block index of the "
        "queries, and the blocks have different sizes",
        "the last live block of keys is ((i + 1) * block_q - 1) // block_k",
        unequal(
            live=up_to_diagonal,
            key_block=lambda block, step, block_q, block_k: np.minimum(step, block),
        ),
        "index map",
    ),
)
HEADS = (
    Suspect(
        "query heads get the wrong key head: h % key_heads where neighbours share one",
        "the key head of query head h is h // (query_heads // key_heads)",
        whole(changed(seen_before, heads="modulo")),
        "index map",
    ),
    Suspect(
        "every query head gets the first key head",
        "the key head of query head h is h // (query_heads // key_heads)",
        whole(changed(seen_before, heads="first")),
        "index map",
    ),
)
