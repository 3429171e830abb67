"""Layers as plain loops over nodes and edges, in the conventions of several libraries, to test the oracle's formulas.

The loops take complex numbers, too: the imaginary part of the result at x + 1e-30 i v is the derivative along v,
without cancellation.
"""

import numpy as np

LOOPS = {"paper": "missing", "dgl": "none", "pyg": "replace"}


def positive(x):
    return np.real(x) > 0


def leaky(x, slope):
    return np.where(positive(x), x, slope * x)


def in_edges(edges, added_loops):
    """Return each row's edges, [(source, edge index)]; `added_loops` is "missing" (add missing self loops), "none", or "replace" (all).

    The edge index of an added self loop is None.
    """
    rows = [[] for _ in range(edges.n_dst)]
    loop = {}
    for e, (j, i) in enumerate(zip(edges.src, edges.dst)):
        if i == j:
            loop[i] = e
        if i != j or added_loops != "replace":
            rows[i].append((j, e))
    for i, row in enumerate(rows):
        if added_loops == "replace" or (added_loops == "missing" and i not in loop):
            row.append((i, loop.get(i)))
    return rows


def gcn(state_dict: dict, x, edges, library: str, edge_weight=None, added_loops=None):
    """Return a GCN layer's output as `library`, "paper", "dgl" or "pyg", defines it; `added_loops` as in `in_edges` (None: its own).

    For a source without in-edges PyG's degree^-1/2 is 0, in the other libraries it is 1.
    """
    w, b = {"paper": lambda: (state_dict["linear.weight"], state_dict["bias"]), "dgl": lambda: (state_dict["weight"], state_dict["bias"]),
            "pyg": lambda: (state_dict["lin.weight"].T, state_dict["bias"])}[library]()  # fmt: skip
    rows = in_edges(edges, added_loops or LOOPS[library])
    weight = [[1 if e is None or edge_weight is None else edge_weight[e] for _, e in row] for row in rows]
    degree = [sum(of_row) for of_row in weight]
    out_degree = np.bincount(edges.src, minlength=edges.n_src)
    out = np.zeros((edges.n_dst, w.shape[1]), x.dtype) + b
    for i, row in enumerate(rows):
        for (j, _), value in zip(row, weight[i]):
            if library == "dgl":
                value = value * max(out_degree[j], 1) ** -0.5 * max(len(row), 1) ** -0.5
            else:
                value = value * (degree[j] ** -0.5 if len(rows[j]) else library != "pyg") * degree[i] ** -0.5
            out[i] += value * (x[j] @ w)
    return out


def sage(state_dict: dict, x, edges, library: str, pools: bool):
    """Return the output of the GraphSAGE layer of `library`, "paper", "dgl" or "pyg": a mean of neighbours, or if `pools` a maximum.

    A maximum's gradient goes to the lowest source among ties.
    """
    names = {"paper": ("root.weight", "root.bias", "neighbour.weight", "pool.weight", "pool.bias"),
             "dgl": ("fc_self.weight", "fc_self.bias", "fc_neigh.weight", "fc_pool.weight", "fc_pool.bias"),
             "pyg": ("lin_r.weight", "lin_l.bias", "lin_l.weight", "lin.weight", "lin.bias")}[library]  # fmt: skip
    values = [state_dict.get(name) for name in names]
    root, bias, w, w_pool, b_pool = (value if library == "paper" or np.ndim(value) < 2 else value.T for value in values)
    z = leaky(x @ w_pool + b_pool, 0) if pools else x
    out = np.zeros((edges.n_dst, w.shape[1]), x.dtype)
    for i, row in enumerate(in_edges(edges, "none")):
        near = np.zeros(z.shape[1], z.dtype)
        if row and pools:
            near = np.array([max((z[j, c] for j, _ in sorted(row)), key=np.real) for c in range(z.shape[1])])
        elif row:
            near = sum(z[j] for j, _ in row) / len(row)
        out[i] = x[i] @ root + bias + near @ w
    return out


def softmax(scores):
    top = max(scores, key=np.real)
    values = [np.exp(score - top) for score in scores]
    return [value / sum(values) for value in values]


def attended(z, score, edges, library):
    """Return sums of z, (n_dst, n_heads, n_feat), weighted by softmaxes of score(source, destination, head); `library` adds self loops."""
    out = np.zeros((edges.n_dst, *z.shape[1:]), z.dtype)
    for i, row in enumerate(in_edges(edges, LOOPS[library])):
        for h in range(z.shape[1] if row else 0):
            for a, (j, _) in zip(softmax([score(j, i, h) for j, _ in row]), row):
                out[i, h] += a * z[j, h]
    return out


def gat(s, x, edges, dialect, slope=0.2, residual=False):
    if dialect == "paper":
        w, a_src, a_dst = s["linear.weight"], s["attn_src"], s["attn_dst"]
    elif dialect == "dgl":
        w, a_src, a_dst = s["fc.weight"].T, s["attn_l"][0], s["attn_r"][0]
    else:
        w, a_src, a_dst = s["lin.weight"].T, s["att_src"][0], s["att_dst"][0]
    z = (x @ w).reshape(len(x), *a_src.shape)
    out = attended(z, lambda j, i, h: leaky(a_src[h] @ z[j, h] + a_dst[h] @ z[i, h], slope), edges, dialect)
    return finish(out, s, x, dialect, residual)


def gatv2(s, x, edges, dialect, slope=0.2, residual=False):
    names = {"paper": ("linear_src", "linear_dst", "attn"), "dgl": ("fc_src", "fc_dst", "attn"), "pyg": ("lin_l", "lin_r", "att")}
    src, dst, a = names[dialect]
    w, q = (s[f"{name}.weight"] if dialect == "paper" else s[f"{name}.weight"].T for name in (src, dst))
    a = s[a] if dialect == "paper" else s[a][0]
    z, q = ((x @ w + s[f"{src}.bias"]).reshape(len(x), *a.shape), (x @ q + s[f"{dst}.bias"]).reshape(len(x), *a.shape))
    out = attended(z, lambda j, i, h: a[h] @ leaky(z[j, h] + q[i, h], slope), edges, dialect)
    return finish(out, s, x, dialect, residual)


def finish(head_outputs, state_dict: dict, x, library: str, has_residual):
    """Return an attention layer's output: the heads joined as `library` does, plus bias and, with `has_residual`, the residual of x.

    DGL's bias is in the residual's projection, and its heads stay an axis. PyG always projects; the paper's layer
    does if the widths differ.
    """
    n, n_heads, n_feat = head_outputs.shape
    if library == "dgl":
        if "res_fc.weight" in state_dict:
            residual = x @ state_dict["res_fc.weight"].T + state_dict["res_fc.bias"]
        else:
            residual = state_dict.get("bias", 0 * head_outputs[0])
        return head_outputs + residual.reshape(-1, n_heads, n_feat)
    bias = state_dict["bias"]
    head_outputs = head_outputs.mean(1) if len(bias) == n_feat else head_outputs.reshape(n, -1)
    root = {"paper": lambda: state_dict.get("root.weight"), "pyg": lambda: state_dict["res.weight"].T if has_residual else None}[library]()
    return head_outputs + bias + (x @ root if root is not None else x if has_residual else 0)


def rgcn(s, x, edges, dialect, relation):
    names = {"paper": ("bases", "coefficients", "root.weight", "bias"), "dgl": ("linear_r.W", "linear_r.coeff", "loop_weight", "h_bias"),
             "pyg": ("weight", "comp", "root", "bias")}[dialect]  # fmt: skip
    bases, c, root, bias = (s[name] for name in names)
    out = x @ root + bias
    for i, row in enumerate(in_edges(edges, "none")):
        for j, e in row:
            r = relation[e]
            w = sum(c[r, b] * bases[b] for b in range(len(bases)))
            count = 1 if dialect == "dgl" else sum(relation[other] == r for _, other in row)
            out[i] = out[i] + x[j] @ w / count
    return out


def batch_norm(s, x, dialect, eps=1e-5):
    word = {"paper": ("gamma", "beta"), "dgl": ("weight", "bias"), "pyg": ("module.weight", "module.bias")}[dialect]
    mean = sum(x) / len(x)
    return (x - mean) / np.sqrt(sum((row - mean) ** 2 for row in x) / len(x) + eps) * s[word[0]] + s[word[1]]


def cross_entropy(logits, labels, mask):
    rows = [np.log(sum(np.exp(row))) - row[label] for row, label, asked in zip(logits, labels, mask) if asked]
    return sum(rows) / len(rows)
