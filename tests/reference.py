"""Slow twins: every formula once more, as plain loops straight from its equation.

They are written to be checked by eye against the paper, never to be fast: no vectorising, no shared helpers with the
package, one float at a time.
"""

import math


# --- Accuracy.
def per_class_accuracy(y_true, y_pred, classes):
    result = []
    for c in classes:
        rows = [i for i in range(len(y_true)) if y_true[i] == c]
        right = [i for i in rows if y_pred[i] == c]
        result.append(len(right) / len(rows) if rows else math.nan)
    return result


def macro_accuracy(y_true, y_pred, classes):
    present = [a for a in per_class_accuracy(y_true, y_pred, classes) if not math.isnan(a)]
    return sum(present) / len(present)


def micro_accuracy(y_true, y_pred, classes):
    rows = [i for i in range(len(y_true)) if y_true[i] in classes]
    return sum(y_true[i] == y_pred[i] for i in rows) / len(rows)


def harmonic_mean(u, s):
    return 2 * u * s / (u + s) if u + s > 0 else 0.0


# --- Calibrated stacking (Chao et al., 2016) and its curve.
def predict(scores, seen, seen_penalty=0.0, among=None):
    """The first class, in the order of their ids, whose penalised score no other class exceeds."""
    result = []
    for row in scores:
        best, best_score = None, None
        for c in range(len(row)):
            if among is not None and c not in among:
                continue
            score = row[c] - seen_penalty if c in seen else row[c]
            if best is None or score > best_score:
                best, best_score = c, score
        result.append(best)
    return result


def gap(scores, seen, unseen):
    return [max(row[c] for c in seen) - max(row[c] for c in unseen) for row in scores]


def seen_unseen_curve(scores_seen, y_seen, scores_unseen, y_unseen, seen, unseen, accuracy=macro_accuracy):
    """One prediction of every row for every penalty between two distinct gaps, and one beyond either end."""
    gaps = sorted({*gap(scores_seen, seen, unseen), *gap(scores_unseen, seen, unseen)})
    penalties = [gaps[0] - 1]
    for i in range(len(gaps) - 1):
        penalties.append((gaps[i] + gaps[i + 1]) / 2)
    penalties.append(gaps[-1] + 1)
    u = [accuracy(y_unseen, predict(scores_unseen, seen, p), unseen) for p in penalties]
    s = [accuracy(y_seen, predict(scores_seen, seen, p), seen) for p in penalties]
    return penalties, u, s


def ausuc(u, s):
    area = 0.0
    for i in range(len(u) - 1):
        area += (u[i + 1] - u[i]) * (s[i] + s[i + 1]) / 2
    return area


def auroc(gap_seen, gap_unseen):
    points = 0.0
    for a in gap_seen:
        for b in gap_unseen:
            if a > b:
                points += 1
            elif a == b:
                points += 0.5
    return points / (len(gap_seen) * len(gap_unseen))


# --- Distributions.
def imq_kernel(a, b):
    d = len(a)
    return 2 * d / (2 * d + sum((a[k] - b[k]) ** 2 for k in range(d)))


def mmd(x, y):
    """Eq. (1)'s braces, with each sample's own count."""
    n, m = len(x), len(y)
    xx = sum(imq_kernel(x[i], x[j]) for i in range(n) for j in range(n) if i != j)
    yy = sum(imq_kernel(y[i], y[j]) for i in range(m) for j in range(m) if i != j)
    xy = sum(imq_kernel(x[i], y[j]) for i in range(n) for j in range(m))
    return xx / (n * (n - 1)) + yy / (m * (m - 1)) - 2 * xy / (n * m)


def mmd_printed(x, y):
    """Eq. (1)'s braces to the letter: one n_c for both samples."""
    n = len(x)
    within = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                within += imq_kernel(x[i], x[j]) + imq_kernel(y[i], y[j])
    across = sum(imq_kernel(x[i], y[j]) for i in range(n) for j in range(n))
    return within / (n * (n - 1)) - 2 / n**2 * across


def cmmd(real_x, real_y, pseudo_x, pseudo_y, classes):
    values = []
    for c in classes:
        real = [real_x[i] for i in range(len(real_y)) if real_y[i] == c]
        pseudo = [pseudo_x[i] for i in range(len(pseudo_y)) if pseudo_y[i] == c]
        if len(real) >= 2 and len(pseudo) >= 2:
            values.append(mmd(real, pseudo))
    return sum(values) / len(values)


def class_means(x, y, classes):
    result = []
    for c in classes:
        rows = [x[i] for i in range(len(y)) if y[i] == c]
        result.append([sum(row[k] for row in rows) / len(rows) if rows else math.nan for k in range(len(x[0]))])
    return result


def center_distance(a, b):
    return math.sqrt(sum((a[k] - b[k]) ** 2 for k in range(len(a))))


def cacd(real_centers, generated_centers):
    distances = [center_distance(g, r) for g, r in zip(generated_centers, real_centers, strict=True)]
    return sum(distances) / len(distances)


def cacd_printed(real_centers, generated_centers):
    return sum(math.sqrt(center_distance(g, r)) for g, r in zip(generated_centers, real_centers, strict=True))
