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


def share_taken_for(y_pred, group):
    """How many of the rows are taken for some class of a group, of all."""
    taken = 0
    for prediction in y_pred:
        if prediction in group:
            taken += 1
    return taken / len(y_pred)


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


# --- Losses of the classifier. Logits are lists of rows, ``seen`` holds the ids of the seen classes.
def probabilities(row):
    """p_c(x) of Eq. (2), for every class c."""
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def logits(x, weights, temperature):
    return [[sum(w * v for w, v in zip(row, xi, strict=True)) / temperature for row in weights] for xi in x]


def cross_entropy(logits, y):
    """Eq. (2)."""
    total = 0.0
    for i in range(len(y)):
        total += -math.log(probabilities(logits[i])[y[i]])
    return total / len(y)


def gate_is_open(p, true, seen, gate):
    unseen = [c for c in range(len(p)) if c not in seen]
    if not unseen:
        return False
    p_m = max(p[c] for c in unseen)
    if gate == "argmax_all":
        return all(p_m > p[c] for c in seen)
    if gate == "above_true":
        return p_m > p[true]
    return True


def revised_cross_entropy(logits, y, seen, lambda_1, gate):
    """Eq. (8), with 1/n before both sums and one of three indicators."""
    total = 0.0
    for i in range(len(y)):
        p = probabilities(logits[i])
        if y[i] in seen:
            p_s = sum(p[c] for c in seen)
            p_m = max([p[c] for c in range(len(p)) if c not in seen], default=0.0)
            weight = lambda_1 if gate_is_open(p, y[i], seen, gate) else 0.0
            total += -math.log(p[y[i]] / (p_s + weight * p_m))
        else:
            total += -math.log(p[y[i]])
    return total / len(y)


def revised_cross_entropy_listed(logits, y, seen, lambda_1):
    """What the appendix's listing computes: every class has a factor, and a row the log of its weighted sum."""
    total = 0.0
    for i in range(len(y)):
        top = max(range(len(logits[i])), key=lambda c: logits[i][c])
        weighted_sum = 0.0
        for c in range(len(logits[i])):
            factor = 1.0
            if y[i] in seen and c not in seen:
                factor = lambda_1 if c == top else 0.0
            weighted_sum += factor * math.exp(logits[i][c] - logits[i][y[i]])
        total += math.log(weighted_sum)
    return total / len(y)


def incremental_cross_entropy(logits, y, seen, lambda_1, lambda_2):
    """Eq. (6)."""
    of_seen_rows, of_unseen_rows = 0.0, 0.0
    for i in range(len(y)):
        p = probabilities(logits[i])
        p_s = sum(p[c] for c in range(len(p)) if c in seen)
        p_u = sum(p[c] for c in range(len(p)) if c not in seen)
        if y[i] in seen:
            of_seen_rows += -math.log(p[y[i]] / (p_s + lambda_1 * p_u))
        else:
            of_unseen_rows += -math.log(p[y[i]])
    return (of_seen_rows + lambda_2 * of_unseen_rows) / len(y)


def incremental_gradient(x, y, weights, seen, temperature, lambda_1, lambda_2):
    """Eq. (7), one row per unseen class."""
    n, d = len(x), len(x[0])
    p = [probabilities(row) for row in logits(x, weights, temperature)]
    result = []
    for u in range(len(weights)):
        if u in seen:
            continue
        step = [0.0] * d
        for k in range(d):
            for i in range(n):
                if y[i] == u:
                    step[k] += lambda_2 / (n * temperature) * x[i][k]
                if y[i] not in seen:
                    step[k] -= lambda_2 / (n * temperature) * p[i][u] * x[i][k]
                else:
                    p_s = sum(p[i][c] for c in range(len(weights)) if c in seen)
                    p_u = sum(p[i][c] for c in range(len(weights)) if c not in seen)
                    step[k] -= 1 / (n * temperature) * lambda_1 * p[i][u] / (p_s + lambda_1 * p_u) * x[i][k]
        result.append(step)
    return result


def pull_and_push(x, y, weights, temperature):
    """Eq. (3): its upper and its lower line, one row per class."""
    n, d = len(x), len(x[0])
    p = [probabilities(row) for row in logits(x, weights, temperature)]
    pull, push = [], []
    for k in range(len(weights)):
        pull.append([sum(x[i][j] for i in range(n) if y[i] == k) / (n * temperature) for j in range(d)])
        push.append([-sum(p[i][k] * x[i][j] for i in range(n)) / (n * temperature) for j in range(d)])
    return pull, push


# --- Losses of the generators.
def wasserstein_loss(d_real, d_fake, slopes, gp_weight):
    """Eq. (4) turned round, with WGAN-GP's penalty: ``slopes`` are the gradients of D at the points in between."""
    n = len(d_real)
    loss = sum(d_fake) / n - sum(d_real) / n
    for slope in slopes:
        loss += gp_weight * (math.sqrt(sum(value**2 for value in slope)) - 1) ** 2 / n
    return loss


def squared_error(outputs, x):
    """Eq. (A.1) with the squared norm: one output of the mapping net for every row."""
    return sum(sum((a - b) ** 2 for a, b in zip(g, xi, strict=True)) for g, xi in zip(outputs, x, strict=True)) / len(x)


def gaussian_kl(means, log_variances):
    """KL(N(μ, σ²) ‖ N(0, I)), averaged over rows."""
    total = 0.0
    for mean, log_variance in zip(means, log_variances, strict=True):
        for m, v in zip(mean, log_variance, strict=True):
            total += (m**2 + math.exp(v) - v - 1) / 2
    return total / len(means)


def linear_logits(x, weights, biases):
    """W x + b, as a softmax classifier has them."""
    return [
        [sum(w * v for w, v in zip(row, xi, strict=True)) + b for row, b in zip(weights, biases, strict=True)]
        for xi in x
    ]


def supervised_contrast(points, y, temperature):
    """Khosla et al. (2020), Eq. (2): the mean over the anchors, which are points with another one of their class."""
    n = len(points)

    def similarity(i, j):
        return sum(a * b for a, b in zip(points[i], points[j], strict=True)) / temperature

    of_anchors = []
    for i in range(n):
        positives = [p for p in range(n) if p != i and y[p] == y[i]]
        if not positives:
            continue
        total = sum(math.exp(similarity(i, a)) for a in range(n) if a != i)
        of_anchors.append(-sum(math.log(math.exp(similarity(i, p)) / total) for p in positives) / len(positives))
    return sum(of_anchors) / len(of_anchors) if of_anchors else 0.0


def pair_scores(rows, classes, last):
    """Every row with every class: a leaky ReLU of slope 0.2 of the sum of their parts, weighted."""
    result = []
    for r in rows:
        scores = []
        for c in classes:
            score = 0.0
            for k in range(len(last)):
                hidden = r[k] + c[k]
                score += last[k] * (hidden if hidden > 0 else 0.2 * hidden)
            scores.append(score)
        result.append(scores)
    return result


# --- Instance level.
def within_class_covariance(x, y):
    """The pooled covariance within classes, unbiased: one row of every class is spent on its mean."""
    classes = sorted(set(y))
    mean = dict(zip(classes, class_means(x, y, classes), strict=True))
    d, freedom = len(x[0]), len(x) - len(classes)
    result = [[0.0] * d for _ in range(d)]
    for i in range(len(x)):
        for j in range(d):
            for k in range(d):
                result[j][k] += (x[i][j] - mean[y[i]][j]) * (x[i][k] - mean[y[i]][k]) / freedom
    return result
