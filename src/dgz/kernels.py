"""Fused GPU kernels for the inner loops, in Triton.

Each does exactly what a plain function of the file that calls it does in several passes: training steps are small, and
on a GPU they cost as many microseconds as they have kernels. Only imported where tensors are on a GPU and Triton is
installed. Nothing here is random, and sums are taken in a fixed order: the same numbers give the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dgz.nets import SLOPE, pair_slopes

# What one program holds at once must fit into its registers: a row's scores for all classes, and sums over parts of the
# rows and of the features. Larger steps have products that keep a GPU busy anyway.
MOST_CLASSES, MOST_ROWS, MOST_FEATURES = 2048, 1024, 8192
_ROWS = 2  # of a program of the loss kernel
Moving = tuple[Tensor, Tensor, Tensor]  # parameters, and Adam's two moments of them


# --- Adam's rule, as every kernel below uses it.
@triton.jit
def _moved(p, m, v, gradient, rate, correction_1, correction_2):
    """Adam's rule with the settings of ``training.adam``: β1 = 0.5, β2 = 0.999, ε = 1e-8."""
    m = 0.5 * m + 0.5 * gradient
    v = 0.999 * v + 0.001 * gradient * gradient
    p -= rate / correction_1 * m / (tl.sqrt(v) / tl.sqrt(correction_2) + 1e-8)
    return p, m, v


@triton.jit
def _adam(P, M, V, at, moments_at, mask, gradient, rate, correction_1, correction_2):
    """Adam's rule on values in memory; gives the new ones."""
    m = tl.load(M + moments_at, mask=mask, other=0.0)
    v = tl.load(V + moments_at, mask=mask, other=0.0)
    p = tl.load(P + at, mask=mask, other=0.0)
    p, m, v = _moved(p, m, v, gradient, rate, correction_1, correction_2)
    tl.store(M + moments_at, m, mask=mask)
    tl.store(V + moments_at, v, mask=mask)
    tl.store(P + at, p, mask=mask)
    return p


@triton.jit
def _count_step(T, Corrections, k):
    """Count a step, and store 1 - 0.5^t and 1 - 0.999^t: once, for double precision is slow, and a must at first."""
    t = tl.load(T + k) + 1.0
    tl.store(T + k, t)
    t = t.to(tl.float64)
    tl.store(Corrections + 2 * k, (1.0 - tl.exp(t * -0.6931471805599453)).to(tl.float32))
    tl.store(Corrections + 2 * k + 1, (1.0 - tl.exp(t * -0.0010005003335835344)).to(tl.float32))


# --- The classifier with mapped weights. Members, one per program of the grid's last axis, are trained independently.
@triton.jit
def _hidden_kernel(
    A, W, Bias, H, T, Corrections, n_classes, d_e, d_hidden, SLOPE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """H = leaky(A Wᵀ + b), (C, d_hidden); and count the step."""
    k = tl.program_id(2).to(tl.int64)
    if tl.program_id(0) + tl.program_id(1) == 0:
        _count_step(T, Corrections, k)
    c = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    W += k * d_hidden * d_e
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, d_e, K):
        i = start + tl.arange(0, K)
        a = tl.load(A + c[:, None] * d_e + i[None, :], mask=(c[:, None] < n_classes) & (i[None, :] < d_e), other=0.0)
        w = tl.load(W + n[None, :] * d_e + i[:, None], mask=(n[None, :] < d_hidden) & (i[:, None] < d_e), other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
    total += tl.load(Bias + k * d_hidden + n, mask=n < d_hidden, other=0.0)[None, :]
    total = tl.where(total > 0, total, SLOPE * total)
    H += k * n_classes * d_hidden
    tl.store(H + c[:, None] * d_hidden + n[None, :], total, mask=(c[:, None] < n_classes) & (n[None, :] < d_hidden))


@triton.jit
def _weights_kernel(
    H, W, Bias, Out, Squares, n_classes, d_hidden, d_x, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Out = H Wᵀ + b, (C, d_x), and the sum of squares of each row within this tile."""
    k = tl.program_id(2).to(tl.int64)
    c = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    H += k * n_classes * d_hidden
    W += k * d_x * d_hidden
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, d_hidden, K):
        i = start + tl.arange(0, K)
        inside = i[None, :] < d_hidden
        h = tl.load(H + c[:, None] * d_hidden + i[None, :], mask=(c[:, None] < n_classes) & inside, other=0.0)
        w = tl.load(
            W + n[None, :] * d_hidden + i[:, None], mask=(n[None, :] < d_x) & (i[:, None] < d_hidden), other=0.0
        )
        total = tl.dot(h, w, total, input_precision="ieee")
    total += tl.load(Bias + k * d_x + n, mask=n < d_x, other=0.0)[None, :]
    mask = (c[:, None] < n_classes) & (n[None, :] < d_x)
    total = tl.where(mask, total.to(Out.dtype.element_ty).to(tl.float32), 0.0)
    Out += k * n_classes * d_x
    tl.store(Out + c[:, None] * d_x + n[None, :], total, mask=mask)
    Squares += k * n_classes * tl.num_programs(1)
    tl.store(Squares + c * tl.num_programs(1) + tl.program_id(1), tl.sum(total * total, axis=1), mask=c < n_classes)


@triton.jit
def _cosines_kernel(
    X, Rows, row_stride, W, Squares, n_tiles, Shrink, Cosines, n_rows, n_classes, d_x, part, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, TILES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Cosines of the rows and the weights, (n, C), over one part of the features; and 1/norm of the weights, (C,)."""
    k = (tl.program_id(2) // SPLIT).to(tl.int64)
    s = tl.program_id(2) % SPLIT
    m = tl.program_id(0) * M + tl.arange(0, M)
    c = tl.program_id(1) * N + tl.arange(0, N)
    rows = tl.load(Rows + k * row_stride + m, mask=m < n_rows, other=0).to(tl.int64)
    W += k * n_classes * d_x
    total = tl.zeros((M, N), tl.float32)
    for start in range(s * part, tl.minimum(s * part + part, d_x), K):
        i = start + tl.arange(0, K)
        x = tl.load(X + rows[:, None] * d_x + i[None, :], mask=(m[:, None] < n_rows) & (i[None, :] < d_x), other=0.0)
        w = tl.load(W + c[None, :] * d_x + i[:, None], mask=(c[None, :] < n_classes) & (i[:, None] < d_x), other=0.0)
        total = tl.dot(x, w, total, input_precision="ieee")
    tiles = tl.arange(0, TILES)
    Squares += k * n_classes * n_tiles
    squares = tl.load(
        Squares + c[:, None] * n_tiles + tiles[None, :],
        mask=(c[:, None] < n_classes) & (tiles[None, :] < n_tiles),
        other=0.0,
    )
    shrink = 1.0 / tl.maximum(tl.sqrt(tl.sum(squares, axis=1)), 1e-12)
    if tl.program_id(0) + s == 0:
        tl.store(Shrink + k * n_classes + c, shrink, mask=c < n_classes)
    total *= shrink[None, :]
    Cosines += tl.program_id(2).to(tl.int64) * n_rows * n_classes
    mask = (m[:, None] < n_rows) & (c[None, :] < n_classes)
    tl.store(Cosines + m[:, None] * n_classes + c[None, :], total, mask=mask)


@triton.jit
def _loss_kernel(
    Cosines, Y, Rows, row_stride, Seen, Shrink, Lambda, Gate, Tau, G, Along, Scale, Losses, n_rows, n_classes, width,
    LOSS: tl.constexpr, R: tl.constexpr, C: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Losses of R rows, and ``Scale`` times their slopes in the cosines over the norms of the weights.

    ``Along`` gets the sum over the rows of slope times cosine, over the norms: what of the slope is along the weights.
    ``Scale`` is what keeps slopes near one: n τ times the smallest norm.
    """
    k = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    r = block * R + tl.arange(0, R)[:, None]
    c = tl.arange(0, C)[None, :]
    real = (c < n_classes) & (r < n_rows)
    cosine = tl.zeros((R, C), tl.float32)
    for s in tl.static_range(SPLIT):
        cosine += tl.load(Cosines + ((k * SPLIT + s) * n_rows + r) * n_classes + c, mask=real, other=0.0)
    lambda_1 = tl.load(Lambda + 2 * k)
    logits = tl.where(c < n_classes, cosine / tl.load(Tau + k), float("-inf"))
    pool_row = tl.load(Rows + k * row_stride + r, mask=r < n_rows, other=0).to(tl.int64)
    y = tl.load(Y + pool_row)
    seen = tl.load(Seen + c, mask=c < n_classes, other=0) != 0
    is_seen = tl.load(Seen + y) != 0
    is_true = c == y
    true = tl.sum(tl.where(is_true, logits, 0.0), axis=1, keep_dims=True)
    share = tl.full((R, 1), 1.0, tl.float32)
    rivals = logits
    if LOSS == "revised":
        of_seen = tl.where(seen, logits, float("-inf"))
        of_unseen = tl.where(seen, float("-inf"), logits)
        best = tl.max(of_unseen, axis=1, keep_dims=True)
        gate = tl.load(Gate + k)
        bar = tl.where(gate == 0, tl.max(of_seen, axis=1, keep_dims=True), tl.where(gate == 1, true, float("-inf")))
        rival = tl.where(best > bar, best + tl.log(lambda_1), float("-inf"))
        at = tl.argmax(of_unseen, axis=1, keep_dims=True)
        rivals = tl.where(is_seen, tl.where(seen, logits, tl.where(c == at, rival, float("-inf"))), logits)
    elif LOSS == "incremental":
        rivals = tl.where(is_seen, tl.where(seen, logits, logits + tl.log(lambda_1)), logits)
        share = tl.where(is_seen, share, tl.load(Lambda + 2 * k + 1))
    top = tl.max(rivals, axis=1, keep_dims=True)
    e = tl.exp(rivals - top)
    total = tl.sum(e, axis=1, keep_dims=True)
    loss = (tl.log(total) + top - true) * share
    shrink = tl.load(Shrink + k * n_classes + c, mask=c < n_classes, other=0.0)
    most = tl.max(shrink, axis=1, keep_dims=True)
    if block == 0:
        tl.store(Scale + k + tl.zeros((1, 1), tl.int64), n_rows * tl.load(Tau + k) / most)
    slope = tl.where(real, (e / total - tl.where(is_true, 1.0, 0.0)) * share, 0.0) * shrink / most
    tl.store(G + (k * n_rows + r) * width + c, slope, mask=(r < n_rows) & (c < width))
    along = tl.sum(slope * cosine * shrink, axis=0, keep_dims=True)
    tl.store(Along + (k * tl.num_programs(0) + block) * n_classes + c, along, mask=c < n_classes)
    tl.store(Losses + k * n_rows + r, loss, mask=r < n_rows)


@triton.jit
def _slope_kernel(
    G, width, Along, n_blocks, X, Rows, row_stride, W, Out, Losses, Total, n_rows, n_classes, d_x, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, B: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Out = Gᵀ X[rows] less what is along the weights, (C, d_x): ``Scale`` times the slope in the weights.

    Also averages the loss.
    """
    k = tl.program_id(2).to(tl.int64)
    if tl.program_id(0) + tl.program_id(1) == 0:
        b = tl.arange(0, B)
        loss = tl.sum(tl.load(Losses + k * n_rows + b, mask=b < n_rows, other=0.0), axis=0) / n_rows
        tl.store(Total + k, loss)
    c = tl.program_id(0) * M + tl.arange(0, M)
    n = tl.program_id(1) * N + tl.arange(0, N)
    G += k * n_rows * width
    Rows += k * row_stride
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, n_rows, K):
        i = start + tl.arange(0, K)
        g = tl.load(G + i[None, :] * width + c[:, None], mask=(i[None, :] < n_rows) & (c[:, None] < width), other=0.0)
        rows = tl.load(Rows + i, mask=i < n_rows, other=0).to(tl.int64)
        x = tl.load(X + rows[:, None] * d_x + n[None, :], mask=(i[:, None] < n_rows) & (n[None, :] < d_x), other=0.0)
        total = tl.dot(g, x, total, input_precision="ieee")
    b = tl.arange(0, BLOCKS)
    Along += k * n_blocks * n_classes
    along = tl.load(
        Along + b[:, None] * n_classes + c[None, :],
        mask=(b[:, None] < n_blocks) & (c[None, :] < n_classes),
        other=0.0,
    )
    W += k * n_classes * d_x
    Out += k * n_classes * d_x
    at = c[:, None] * d_x + n[None, :]
    mask = (c[:, None] < n_classes) & (n[None, :] < d_x)
    total -= tl.sum(along, axis=0)[:, None] * tl.load(W + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(Out + at, total, mask=mask)


@triton.jit
def _hidden_slope(
    D, W, H, Out, pid_c, pid_n, n_classes, d_x, d_hidden, SLOPE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Out = D W, (C, d_hidden), back through leaky ReLU."""
    c = pid_c * M + tl.arange(0, M)
    n = pid_n * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, d_x, K):
        i = start + tl.arange(0, K)
        d = tl.load(D + c[:, None] * d_x + i[None, :], mask=(c[:, None] < n_classes) & (i[None, :] < d_x), other=0.0)
        w = tl.load(
            W + i[:, None] * d_hidden + n[None, :], mask=(i[:, None] < d_x) & (n[None, :] < d_hidden), other=0.0
        )
        total = tl.dot(d, w, total, input_precision="ieee")
    at = c[:, None] * d_hidden + n[None, :]
    mask = (c[:, None] < n_classes) & (n[None, :] < d_hidden)
    total = tl.where(tl.load(H + at, mask=mask, other=0.0) > 0, total, SLOPE * total)
    tl.store(Out + at, total, mask=mask)


@triton.jit
def _update(
    L, R, P, Pm, Pv, Q, Qm, Qv, Shadow, Corrections, Rate, Scale, pid_o, pid_n, n_classes, d_out, d_in, d_e,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Adam's step of weights P down Lᵀ R / Scale, (d_out, d_in), and of biases Q down the column sums of L / Scale.

    L is (C, d_out), R (C, d_e). ``Shadow`` (d_out, d_e) is the copy of the weights that matrix products read. The tile
    after the last column of tiles is that of the biases.
    """
    rate, scale = tl.load(Rate), 1.0 / tl.load(Scale)
    correction_1, correction_2 = tl.load(Corrections), tl.load(Corrections + 1)
    o = pid_o * M + tl.arange(0, M)
    n = pid_n * N + tl.arange(0, N)
    if pid_n * N < d_e:
        at = o[:, None] * d_in + n[None, :]
        mask = (o[:, None] < d_out) & (n[None, :] < d_in)
        # Asked for early: they are nearly all that this moves.
        m = tl.load(Pm + at, mask=mask, other=0.0)
        v = tl.load(Pv + at, mask=mask, other=0.0)
        p = tl.load(P + at, mask=mask, other=0.0)
        total = tl.zeros((M, N), tl.float32)
        for start in range(0, n_classes, K):
            c = start + tl.arange(0, K)
            left = tl.load(
                L + c[None, :] * d_out + o[:, None], mask=(c[None, :] < n_classes) & (o[:, None] < d_out), other=0.0
            )
            r = tl.load(
                R + c[:, None] * d_e + n[None, :], mask=(c[:, None] < n_classes) & (n[None, :] < d_e), other=0.0
            )
            total = tl.dot(left, r, total, input_precision="ieee")
        p, m, v = _moved(p, m, v, total * scale, rate, correction_1, correction_2)
        tl.store(Pm + at, m, mask=mask)
        tl.store(Pv + at, v, mask=mask)
        tl.store(P + at, p, mask=mask)
        tl.store(Shadow + o[:, None] * d_e + n[None, :], p, mask=mask)
    else:
        sums = tl.zeros((M, K), tl.float32)
        for start in range(0, n_classes, K):
            c = start + tl.arange(0, K)
            inside = (c[None, :] < n_classes) & (o[:, None] < d_out)
            sums += tl.load(L + c[None, :] * d_out + o[:, None], mask=inside, other=0.0).to(tl.float32)
        slope = tl.sum(sums, axis=1) * scale
        _adam(Q, Qm, Qv, o, o, o < d_out, slope, rate, correction_1, correction_2)


@triton.jit
def _second_layer_kernel(
    D, W, H, Out, P, Pm, Pv, Q, Qm, Qv, Shadow, Corrections, Rate, Scale, n_classes, d_x, d_hidden, SLOPE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, M2: tl.constexpr, N2: tl.constexpr, K2: tl.constexpr,
):  # fmt: skip
    """The slope goes back through the second layer, and moves it: side by side, so that neither leaves the GPU idle."""
    k = tl.program_id(1).to(tl.int64)
    D += k * n_classes * d_x
    H += k * n_classes * d_hidden
    n_tiles = tl.cdiv(d_hidden, N)
    n_back = tl.cdiv(n_classes, M) * n_tiles
    pid = tl.program_id(0)
    if pid < n_back:
        W += k * d_x * d_hidden
        Out += k * n_classes * d_hidden
        _hidden_slope(D, W, H, Out, pid // n_tiles, pid % n_tiles, n_classes, d_x, d_hidden, SLOPE, M, N, K)
    else:
        pid -= n_back
        n_tiles = tl.cdiv(d_hidden, N2) + 1  # the last is that of the biases
        P += k * d_x * d_hidden
        Pm += k * d_x * d_hidden
        Pv += k * d_x * d_hidden
        Shadow += k * d_x * d_hidden
        Q += k * d_x
        Qm += k * d_x
        Qv += k * d_x
        _update(
            D, H, P, Pm, Pv, Q, Qm, Qv, Shadow, Corrections + 2 * k, Rate, Scale + k, pid // n_tiles, pid % n_tiles,
            n_classes, d_x, d_hidden, d_hidden, M2, N2, K2,
        )  # fmt: skip


@triton.jit
def _first_layer_kernel(
    D, A, P, Pm, Pv, Q, Qm, Qv, Shadow, Corrections, Rate, Scale, n_classes, d_hidden, d_a, d_e, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The slope in the hidden layer moves the first layer."""
    k = tl.program_id(2).to(tl.int64)
    D += k * n_classes * d_hidden
    P += k * d_hidden * d_a
    Pm += k * d_hidden * d_a
    Pv += k * d_hidden * d_a
    Shadow += k * d_hidden * d_e
    Q += k * d_hidden
    Qm += k * d_hidden
    Qv += k * d_hidden
    _update(
        D, A, P, Pm, Pv, Q, Qm, Qv, Shadow, Corrections + 2 * k, Rate, Scale + k, tl.program_id(0), tl.program_id(1),
        n_classes, d_hidden, d_a, d_e, M, N, K,
    )  # fmt: skip


class MappedClassifierStep:
    """One training step of K cosine classifiers whose weights an MLP with one hidden layer maps from class vectors.

    Seven kernels: hidden layer, weights, cosines, loss, slope in the weights, and the two layers, whose own slopes go
    straight into Adam's rule and never into memory. What is multiplied lies in memory as it is multiplied: with
    ``tf32`` as float16, which has TF32's ten bits of fraction and half its size, with ``bf16`` as bfloat16. Slopes are
    scaled until the end, so that float16 holds them. All sums are float32.

    Parameters
    ----------
    x, y : (n, d_x), (n,)
        All rows, of unit norm, and their classes.
    attributes, seen : (C, d_a), (C,) bool
    first, first_bias, second, second_bias : Moving
        Of shapes (K, d_hidden, d_a), (K, d_hidden), (K, d_x, d_hidden), (K, d_x).
    counts : (K,)
        Steps that each member has made, as floats.
    rate : one number on the device
        Learning rate.
    lambdas, gates, temperatures : (K, 2), (K,) int32, (K,)
    loss, slope : str, float
        ``slope`` is the leaky ReLU's.
    n_rows : int
        Rows of a step.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        attributes: Tensor,
        seen: Tensor,
        first: Moving,
        first_bias: Moving,
        second: Moving,
        second_bias: Moving,
        *,
        counts: Tensor,
        rate: Tensor,
        lambdas: Tensor,
        gates: Tensor,
        temperatures: Tensor,
        loss: str,
        slope: float,
        n_rows: int,
    ) -> None:
        self.x, self.y, self.seen = x, y, seen.to(torch.int8)
        self.layers = (first, first_bias, second, second_bias)
        self.counts, self.rate, self.lambdas, self.gates, self.temperatures = counts, rate, lambdas, gates, temperatures
        self.loss, self.slope, self.n_rows = loss, slope, n_rows
        n_members, d_hidden, d_a = first[0].shape
        n_classes, d_x = len(attributes), x.shape[1]
        # A few members leave most of the GPU idle unless their work is cut into more pieces.
        self.split = 4 if n_members <= 4 else 1
        self.tile = 32 if n_members * triton.cdiv(n_classes, 64) * triton.cdiv(d_x, 32) <= 512 else 64

        def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=x.device)

        d_e = triton.cdiv(d_a, 16) * 16
        self.vectors = torch.nn.functional.pad(attributes, (0, d_e - d_a)).to(x.dtype)
        self.first_shadow = torch.zeros(n_members, d_hidden, d_e, dtype=x.dtype, device=x.device)
        # Two, for one may be read while the other is written.
        self.second_shadows = [empty(n_members, d_x, d_hidden, dtype=x.dtype) for _ in range(2)]
        self.hidden, self.hidden_slopes = (empty(n_members, n_classes, d_hidden, dtype=x.dtype) for _ in range(2))
        self.weights, self.slopes = (empty(n_members, n_classes, d_x, dtype=x.dtype) for _ in range(2))
        self.squares = empty(n_members, n_classes, triton.cdiv(d_x, self.tile))
        self.shrink = empty(n_members, n_classes)
        self.cosines = empty(n_members, self.split, n_rows, n_classes)
        self.g = empty(n_members, n_rows, triton.cdiv(n_classes, 16) * 16, dtype=x.dtype)
        self.along = empty(n_members, triton.cdiv(n_rows, _ROWS), n_classes)
        self.losses, self.scale, self.corrections = empty(n_members, n_rows), empty(n_members), empty(n_members, 2)

    def begin(self) -> None:
        """Follow what else may have changed the weights since the last step."""
        first, _, second, _ = self.layers
        self.first_shadow[:, :, : first[0].shape[2]] = first[0]
        self.second_shadows[0].copy_(second[0])
        self.n_made = 0

    def __call__(self, rows: Tensor, n_active: int) -> Tensor:
        """Let the first ``n_active`` members step on their ``rows`` (K, n_rows); gives the losses (K,)."""
        losses = (torch.empty if n_active == len(rows) else torch.zeros)(len(rows), device=rows.device)
        old_shadow, new_shadow = self.second_shadows[self.n_made % 2], self.second_shadows[(self.n_made + 1) % 2]
        self.n_made += 1
        first, first_bias, second, second_bias = self.layers
        _, d_hidden, d_a = first[0].shape
        n_rows, (n_classes, d_e), d_x = self.n_rows, self.vectors.shape, self.x.shape[1]
        stride, split, n_tiles, n_blocks = rows.stride(0), self.split, self.squares.shape[2], self.along.shape[1]
        width = self.g.shape[2]
        part = triton.cdiv(triton.cdiv(d_x, split), 128) * 128
        of_classes = triton.cdiv(n_classes, 64)
        shallow = {"M": 64, "N": self.tile, "K": 64, "num_warps": 4, "num_stages": 3}
        tile = shallow | {"K": 128}
        _hidden_kernel[of_classes, triton.cdiv(d_hidden, self.tile), n_active](
            self.vectors, self.first_shadow, first_bias[0], self.hidden, self.counts, self.corrections, n_classes, d_e,
            d_hidden, SLOPE=self.slope, **(tile if d_e > 128 else shallow),
        )  # fmt: skip
        _weights_kernel[of_classes, n_tiles, n_active](
            self.hidden, old_shadow, second_bias[0], self.weights, self.squares, n_classes, d_hidden, d_x, **tile
        )  # fmt: skip
        _cosines_kernel[triton.cdiv(n_rows, 64), of_classes, n_active * split](
            self.x, rows, stride, self.weights, self.squares, n_tiles, self.shrink, self.cosines, n_rows, n_classes,
            d_x, part, TILES=triton.next_power_of_2(n_tiles), SPLIT=split, **(tile | {"N": 64}),
        )  # fmt: skip
        _loss_kernel[n_blocks, n_active](
            self.cosines, self.y, rows, stride, self.seen, self.shrink, self.lambdas, self.gates, self.temperatures,
            self.g, self.along, self.scale, self.losses, n_rows, n_classes, width,
            LOSS=self.loss, R=_ROWS, C=triton.next_power_of_2(width), SPLIT=split,
            num_warps=4 if width <= 512 else 8,
        )  # fmt: skip
        _slope_kernel[of_classes, triton.cdiv(d_x, self.tile), n_active](
            self.g, width, self.along, n_blocks, self.x, rows, stride, self.weights, self.slopes, self.losses, losses,
            n_rows, n_classes, d_x, B=triton.next_power_of_2(n_rows), BLOCKS=triton.next_power_of_2(n_blocks), **tile,
        )  # fmt: skip
        # Updates of few classes move much and multiply little: narrow tiles leave registers for what is moved.
        narrow = 32 if n_classes <= 256 else 64
        n_back, n_update = of_classes * triton.cdiv(d_hidden, tile["N"]), triton.cdiv(d_hidden, narrow) + 1
        _second_layer_kernel[n_back + triton.cdiv(d_x, 64) * n_update, n_active](
            self.slopes, old_shadow, self.hidden, self.hidden_slopes, *second, *second_bias, new_shadow,
            self.corrections, self.rate, self.scale, n_classes, d_x, d_hidden, SLOPE=self.slope,
            M2=64, N2=narrow, K2=64, **tile,
        )  # fmt: skip
        _first_layer_kernel[triton.cdiv(d_hidden, 64), triton.cdiv(d_e, narrow) + 1, n_active](
            self.hidden_slopes, self.vectors, *first, *first_bias, self.first_shadow, self.corrections, self.rate,
            self.scale, n_classes, d_hidden, d_a, d_e, **(shallow | {"N": narrow}),
        )  # fmt: skip
        return losses


# --- The critic of a Wasserstein GAN: what is left of a step between its matrix products.
@triton.jit
def _rows_kernel(X, Fake, Right, n_rows, d_x, N: tl.constexpr):
    """Put real and generated rows below each other."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * N + tl.arange(0, N)
    mask = i < d_x
    tl.store(Right + row * d_x + i, tl.load(X + row * d_x + i, mask=mask, other=0.0), mask=mask)
    tl.store(Right + (n_rows + row) * d_x + i, tl.load(Fake + row * d_x + i, mask=mask, other=0.0), mask=mask)


@triton.jit
def _bends_kernel(
    Both, Base, Weight, Alpha, Left, Between, Apart, Scores, n_rows, d_hidden, SLOPE: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """From one row's hidden pre-activations, real and generated, the slopes of leaky ReLU, and the row's score.

    ``Left`` (3 n, d_hidden) gets the slopes at the real row, negated, at the generated one, and between the two, all
    over the smaller slope, which makes them whole numbers; ``Between`` (n, d_hidden) the last of these times the
    output's weights; ``Apart`` (n, d_hidden) the difference of the first two.
    """
    row = tl.program_id(0).to(tl.int64)
    alpha = tl.load(Alpha + row)
    score = tl.zeros((N,), tl.float32)
    for start in range(0, d_hidden, N):
        j = start + tl.arange(0, N)
        mask = j < d_hidden
        base = tl.load(Base + row * d_hidden + j, mask=mask, other=0.0).to(tl.float32)
        real = tl.load(Both + row * d_hidden + j, mask=mask, other=0.0).to(tl.float32) + base
        fake = tl.load(Both + (n_rows + row) * d_hidden + j, mask=mask, other=0.0).to(tl.float32) + base
        weight = tl.load(Weight + j, mask=mask, other=0.0)
        of_real = tl.where(real > 0, 1.0, SLOPE)
        of_fake = tl.where(fake > 0, 1.0, SLOPE)
        between = tl.where(alpha * real + (1.0 - alpha) * fake > 0, 1.0, SLOPE)
        score += weight * (of_fake * fake - of_real * real)
        at = Left + row * d_hidden + j
        tl.store(at, -of_real / SLOPE, mask=mask)
        tl.store(at + n_rows * d_hidden, of_fake / SLOPE, mask=mask)
        tl.store(at + 2 * n_rows * d_hidden, between / SLOPE, mask=mask)
        tl.store(Between + row * d_hidden + j, between * weight, mask=mask)
        tl.store(Apart + row * d_hidden + j, of_fake - of_real, mask=mask)
    tl.store(Scores + row, tl.sum(score, axis=0))


@triton.jit
def _penalty_kernel(Slope, Right, Scores, Penalties, T, Corrections, GpWeight, n_rows, d_x, N: tl.constexpr):
    """The gradient penalty of one row, added to its score, and n times its derivative in the slope, (d_x,).

    Without its weight, the penalty is kept too.

    Also counts the step.
    """
    row = tl.program_id(0).to(tl.int64)
    if row == 0:
        _count_step(T, Corrections, row)
    square = tl.zeros((N,), tl.float32)
    for start in range(0, d_x, N):
        i = start + tl.arange(0, N)
        slope = tl.load(Slope + row * d_x + i, mask=i < d_x, other=0.0).to(tl.float32)
        square += slope * slope
    norm = tl.sqrt(tl.sum(square, axis=0))
    gp_weight = tl.load(GpWeight)
    scale = 2.0 * gp_weight * (norm - 1.0) / tl.maximum(norm, 1e-30)
    for start in range(0, d_x, N):
        i = start + tl.arange(0, N)
        slope = tl.load(Slope + row * d_x + i, mask=i < d_x, other=0.0).to(tl.float32)
        tl.store(Right + (2 * n_rows + row) * d_x + i, scale * slope, mask=i < d_x)
    penalty = (norm - 1.0) * (norm - 1.0)
    tl.store(Penalties + row, penalty)
    tl.store(Scores + row, tl.load(Scores + row) + gp_weight * penalty)


@triton.jit
def _critic_update_kernel(
    Qx, Qa, X, Xm, Xv, Shadow, A, Am, Av, B, Bm, Bv, W, Wm, Wv, Corrections, Rate, n_rows, d_x, d_a, d_e, scale,
    N: tl.constexpr,
):  # fmt: skip
    """Adam's step of everything that belongs to one hidden unit; ``generators.critic_slopes`` has the formulas.

    Parameters of class vectors and biases lie in rows of length d_e: d_a of the first, then one of the second.
    """
    j = tl.program_id(0).to(tl.int64)
    correction_1, correction_2 = tl.load(Corrections), tl.load(Corrections + 1)
    rate = tl.load(Rate)
    weight = tl.load(W + j)
    of_weight = tl.zeros((N,), tl.float32)
    for start in range(0, d_x, N):
        i = start + tl.arange(0, N)
        at = j * d_x + i
        mask = i < d_x
        q = tl.load(Qx + at, mask=mask, other=0.0).to(tl.float32) * scale
        of_weight += q * tl.load(X + at, mask=mask, other=0.0)
        moved = _adam(X, Xm, Xv, at, at, mask, weight * q, rate, correction_1, correction_2)
        tl.store(Shadow + at, moved, mask=mask)
    for start in range(0, d_a, N):
        i = start + tl.arange(0, N)
        mask = i < d_a
        q = tl.load(Qa + j * d_e + i, mask=mask, other=0.0).to(tl.float32) / n_rows
        of_weight += q * tl.load(A + j * d_e + i, mask=mask, other=0.0)
        _adam(A, Am, Av, j * d_e + i, j * d_a + i, mask, weight * q, rate, correction_1, correction_2)
    q = tl.load(Qa + j * d_e + d_a).to(tl.float32) / n_rows
    slope = tl.sum(of_weight, axis=0) + q * tl.load(B + j * d_e)
    one = tl.arange(0, 1)
    nothing = tl.zeros((1,), tl.float32)
    _adam(B, Bm, Bv, j * d_e + one, j + one, one == 0, nothing + weight * q, rate, correction_1, correction_2)
    _adam(W, Wm, Wv, j + one, j + one, one == 0, nothing + slope, rate, correction_1, correction_2)


class CriticStep:
    """One step of a critic with one hidden layer: five matrix products and the four kernels above.

    What is multiplied lies in memory as it is multiplied, see :class:`MappedClassifierStep`.

    Parameters
    ----------
    of_x, of_a, bias, last : Moving
        Its parameters, of shapes (d_hidden, d_x), (d_hidden, d_a), (d_hidden,) and (1, d_hidden). The last layer's bias
        cancels from the loss, and never moves. ``of_a`` and ``bias`` are columns of ``vectors``.
    vectors : (d_hidden, d_e)
        Parameters of class vectors, then biases, then zeros up to a width that matrix products like.
    count, rate, gp_weight : one number each, on the device
        Steps made so far; learning rate; weight of the gradient penalty.
    slope : float
        The leaky ReLU's.
    dtype : torch.dtype
        Of what is multiplied.

    Attributes
    ----------
    penalty : one number, on the device
        The last step's gradient penalty without its weight.
    """

    penalty: Tensor

    def __init__(
        self,
        of_x: Moving,
        of_a: Moving,
        bias: Moving,
        last: Moving,
        *,
        vectors: Tensor,
        count: Tensor,
        rate: Tensor,
        gp_weight: Tensor,
        slope: float,
        dtype: torch.dtype,
    ) -> None:
        self.parts, self.vectors, self.dtype = (of_x, of_a, bias, last), vectors, dtype
        self.count, self.rate, self.gp_weight, self.slope = count, rate, gp_weight, slope
        self.shadow, self.corrections = torch.empty_like(of_x[0], dtype=dtype), torch.empty(2, device=vectors.device)

    def begin(self) -> None:
        """Follow what else may have changed the parameters since the last step."""
        self.shadow.copy_(self.parts[0][0])

    def __call__(self, x: Tensor, fake: Tensor, vectors: Tensor, alpha: Tensor) -> Tensor:
        """Step on real rows x (n, d_x), generated ones, their class vectors (n, d_e) and α (n, 1); gives the loss.

        A class vector is followed by a one, for the bias, and by zeros.
        """
        of_x, of_a, bias, last = self.parts
        n_rows, (d_hidden, d_x) = len(x), of_x[0].shape

        def empty(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=x.device)

        left, right = empty(3 * n_rows, d_hidden), empty(3 * n_rows, d_x)
        between, apart = empty(n_rows, d_hidden), empty(n_rows, d_hidden)
        scores, penalties = empty(n_rows, dtype=torch.float32), empty(n_rows, dtype=torch.float32)
        with torch.autocast("cuda", enabled=False):
            _rows_kernel[n_rows, triton.cdiv(d_x, 1024)](x, fake, right, n_rows, d_x, N=1024)
            vectors = vectors.to(self.dtype)
            base = vectors @ self.vectors.to(self.dtype).T
            hidden = _multiply(right[: 2 * n_rows], self.shadow.T)
            _bends_kernel[n_rows,](
                hidden, base, last[0], alpha, left, between, apart, scores, n_rows, d_hidden, SLOPE=self.slope, N=1024
            )
            slope = _multiply(between, self.shadow)
            _penalty_kernel[n_rows,](
                slope, right, scores, penalties, self.count, self.corrections, self.gp_weight, n_rows, d_x, N=1024
            )
            _critic_update_kernel[d_hidden,](
                _multiply(left.T, right), _multiply(apart.T, vectors), *of_x, self.shadow, *of_a, *bias, *last,
                self.corrections, self.rate, n_rows, d_x, of_a[0].shape[1], self.vectors.shape[1], self.slope / n_rows,
                N=1024,
            )  # fmt: skip
        self.penalty = penalties.mean()
        return scores.mean()


# --- Scores of all pairs of rows and classes. The hidden values of a pair never leave the registers.
@triton.jit
def _pair_scores_kernel(
    Rows, Classes, Last, Out, n_rows, n_classes, width, SLOPE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr,
):  # fmt: skip
    """Out[i, j] = sum over k of w[k] leaky(r[i, k] + c[j, k])."""
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, width, K):
        k = start + tl.arange(0, K)
        inside = k[None, :] < width
        r = tl.load(Rows + i[:, None] * width + k[None, :], mask=(i[:, None] < n_rows) & inside, other=0.0)
        c = tl.load(Classes + j[:, None] * width + k[None, :], mask=(j[:, None] < n_classes) & inside, other=0.0)
        w = tl.load(Last + k, mask=k < width, other=0.0)
        hidden = r[:, None, :] + c[None, :, :]
        total += tl.sum(tl.where(hidden > 0, hidden, SLOPE * hidden) * w[None, None, :], axis=2)
    mask = (i[:, None] < n_rows) & (j[None, :] < n_classes)
    tl.store(Out + i[:, None] * n_classes + j[None, :], total, mask=mask)


@triton.jit
def _pair_slopes_kernel(
    Own, Others, Slopes, Out, n_own, n_others, width, own_stride, others_stride, SLOPE: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Out[i, k] = sum over j of g[i, j] leaky'(own[i, k] + other[j, k]); the strides say which way g is read."""
    i = tl.program_id(0) * M + tl.arange(0, M)
    k = tl.program_id(1) * K + tl.arange(0, K)
    inside = k[None, :] < width
    own = tl.load(Own + i[:, None] * width + k[None, :], mask=(i[:, None] < n_own) & inside, other=0.0)
    total = tl.zeros((M, K), tl.float32)
    for start in range(0, n_others, N):
        j = start + tl.arange(0, N)
        other = tl.load(Others + j[:, None] * width + k[None, :], mask=(j[:, None] < n_others) & inside, other=0.0)
        at = i[:, None] * own_stride + j[None, :] * others_stride
        g = tl.load(Slopes + at, mask=(i[:, None] < n_own) & (j[None, :] < n_others), other=0.0)
        bend = tl.where(own[:, None, :] + other[None, :, :] > 0, 1.0, SLOPE)
        total += tl.sum(g[:, :, None] * bend, axis=1)
    tl.store(Out + i[:, None] * width + k[None, :], total, mask=(i[:, None] < n_own) & inside)


def pair_scores(rows: Tensor, classes: Tensor, last: Tensor) -> Tensor:
    """What :func:`dgz.nets.pair_scores` gives, with a derivative."""
    scores: Tensor = _PairScores.apply(rows.contiguous(), classes.contiguous(), last.contiguous())
    return scores


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, classes: Tensor, last: Tensor) -> Tensor:
        ctx.save_for_backward(rows, classes, last)
        (n_rows, width), n_classes = rows.shape, len(classes)
        out = torch.empty(n_rows, n_classes, device=rows.device)
        grid = (triton.cdiv(n_rows, 16), triton.cdiv(n_classes, 16))
        _pair_scores_kernel[grid](
            rows, classes, last, out, n_rows, n_classes, width, SLOPE=SLOPE, M=16, N=16, K=32, num_warps=4
        )
        return out

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, classes, last = ctx.saved_tensors
        slopes = slopes.contiguous()
        n_classes = len(classes)
        by_row = _pair_sums(rows, classes, slopes, n_classes, 1)
        by_class = _pair_sums(classes, rows, slopes, 1, n_classes)
        return pair_slopes(rows, classes, last, by_row, by_class)


def _pair_sums(own: Tensor, others: Tensor, slopes: Tensor, own_stride: int, others_stride: int) -> Tensor:
    out = torch.empty_like(own)
    n_own, width = own.shape
    grid = (triton.cdiv(n_own, 16), triton.cdiv(width, 32))
    _pair_slopes_kernel[grid](
        own, others, slopes, out, n_own, len(others), width, own_stride, others_stride, SLOPE=SLOPE, M=16, N=16, K=32,
        num_warps=4,
    )  # fmt: skip
    return out


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """The product in float32, whatever the factors are."""
    return a @ b if a.dtype == torch.float32 else torch.mm(a, b, out_dtype=torch.float32)
