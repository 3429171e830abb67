/* Fused graph attention (GAT, SAR Eq. 3 and sec. 3.3), forward. Coefficients are computed when they are used, and are
 * never stored for each edge. The softmax is online (SAR sec. 3.4): a block of edges updates (m, l, acc) in place, and
 * blocks may come in any order. */
#ifndef T
#include "philox.h"
#define KERNEL "attend.c"
#define ALSO_BFLOAT16
#include "each_index.h"
#else
#include "attend.inc.h"

/* Number of heads of a strip whose coefficients are computed before any row is summed. A multiple of 4, because
 * edge_words draws the random words of 4 heads. */
#ifndef STRIP_HEADS
#define STRIP_HEADS 8
#endif

/* Return the sum of n values s, which exp_all has padded with zeros, in an order that is the same for all instruction sets. */
SAR_INLINE T NAME(sum_all)(const T *restrict s, int n)
{
    T t[LANES] = {0};
    for (int k = 0; k < n; k += LANES) for (int u = 0; u < LANES; u++) t[u] += s[k + u];
    for (int half = LANES / 2; half; half /= 2) for (int u = 0; u < half; u++) t[u] += t[u + half];
    return t[0];
}

/* Return the number of heads that are computed together. The heads of a row of more than SAR_ROW_BYTES are computed in groups.
 * With dropout a group is a multiple of 4 heads, because one random block serves 4 heads; the last group may be
 * smaller. */
SAR_INLINE int64_t NAME(heads_together)(int64_t n_heads, int64_t z_heads, int64_t n_feat, int dropout)
{
    int64_t head_bytes = n_feat * (int64_t)sizeof(T);
    int64_t heads = head_bytes * z_heads <= SAR_ROW_BYTES || head_bytes == 0 || z_heads < n_heads ? n_heads : SAR_ROW_BYTES / head_bytes;
    if (heads < 1) heads = 1;
    if (dropout) heads = (heads + 3) / 4 * 4;
    return heads < n_heads ? heads : n_heads;
}

/* Pointers to the state of the online softmax of one row, for its first head. */
typedef struct {
    T *m, *l, *acc;
} NAME(state);

/* The softmax states of all rows, and the inputs. With `begins`, each row starts from the state without edges, and the
 * stored state is ignored. */
typedef struct {
    NAME(state) rows;
    const T *dst;
    const NAME(sar_attention) *a;
    int begins, near;
} NAME(online);

/* Add n edges to the weighted sum of one row and head h: acc = acc * correction + sum_k coef[k] z[col[k],h,:]. */
SAR_INLINE void NAME(add_rows)(const NAME(online) *o, T *restrict acc, int64_t h, const I *restrict col, const T *restrict coef, int n,
                               T correction, int begins)
{
    const NAME(sar_attention) *a = o->a;
    const int64_t n_feat = a->n_feat, stride = a->z_heads * n_feat;
    const NAME(gather) edges = {.x = a->z + (a->z_heads == 1 ? 0 : h * n_feat), .index = col, .coef = coef, .stride = stride, .n = n,
                                .n_ahead = a->csr.indices + a->csr.indptr[a->csr.n_rows] - col, .near = o->near,
                                .prefetch = NAME(head_prefetch)(h, a->z_heads, stride)};
    if (n == 0 && !begins) return;
    if (!begins && !(correction == 1)) for (int64_t f = 0; f < n_feat; f++) acc[f] *= correction;
    NAME(gather_sum)(acc, &edges, n_feat, 1, begins);
}

/* Add the edges begin .. end of row `to` for the heads first .. last, `step` edges at a time; `begins` as in `online`. */
static void NAME(attend_edges)(const NAME(online) *o, NAME(state) row, int64_t to, int64_t begin, int64_t end, int step, int64_t first,
                               int64_t last, int row_begins)
{
    const NAME(sar_attention) *a = o->a;
    const int64_t n_edges = a->csr.indptr[a->csr.n_rows], n_heads = a->n_heads, n_feat = a->n_feat;
    const int64_t *restrict src_ids = a->dropout.src_ids;
    const T *restrict src = a->src, slope = (T)a->slope, keep = (T)(1 / (1 - a->dropout.p));
    const uint32_t threshold = philox_threshold(a->dropout.p);
    const T *restrict dst = o->dst + to * n_heads;
    T *restrict m = row.m, *restrict l = row.l;
    T s[CHUNK];
    uint64_t edge_id[CHUNK];
    uint32_t word[4][CHUNK];
    int64_t e = begin;

    do {
        const int n = end - e < step ? (int)(end - e) : step, begins = row_begins && e == begin;
        const I *restrict col = a->csr.indices + e;
        NAME(prefetch_scores)(src, n_heads * (int64_t)sizeof(T), col + n, n, n_edges - e - n);
        if (src_ids)
            for (int k = 0; k < n; k++) edge_id[k] = (uint64_t)src_ids[col[k]] * a->dropout.n_nodes + (uint64_t)a->dropout.dst_ids[to];

        for (int64_t h = first; h < last; h++) {
            T old = begins ? -INFINITY : m[h], top = old;
            for (int k = 0; k < n; k++) s[k] = src[(int64_t)col[k] * n_heads + h];      /* apart: with a branch it would not */
            for (int k = 0; k < n; k++) {                                                /* be vectors */
                T pre = s[k] + dst[h];
                s[k] = pre > 0 ? pre : slope * pre;
            }
#pragma omp simd reduction(max : top)
            for (int k = 0; k < n; k++) top = s[k] > top ? s[k] : top;

            /* All scores so far are -inf: any finite shift gives them the weight 0 instead of NaN. */
            T shift = top == -INFINITY ? 0 : top;
            for (int k = 0; k < n; k++) s[k] -= shift;
            NAME(exp_all)(s, n);

            /* The maximum has moved: correct numerator and denominator by exp(old - new). Both are 0 where there was
             * none. */
            T correction = old == -INFINITY ? 1 : NAME(exp_negative)(old - shift);
            l[h] = (begins ? 0 : l[h]) * correction + NAME(sum_all)(s, n);
            m[h] = top;

            if (src_ids) {
                if (h % 4 == 0) NAME(edge_words)(word, edge_id, n, (uint32_t)(h / 4), a->dropout.key);
                for (int k = 0; k < n; k++) {                       /* a product in the choice would be a branch */
                    T kept = s[k] * keep;
                    s[k] = word[h % 4][k] < threshold ? 0 : kept;
                }
            }
            NAME(add_rows)(o, row.acc + h * n_feat, h, col, s, n, correction, begins);
        }
        e += n;
    } while (e < end);
}

/* Merge two states of the heads first .. last into one. */
static void NAME(join_states)(NAME(state) row, NAME(state) with, int64_t n_feat, int64_t first, int64_t last)
{
    for (int64_t h = first; h < last; h++) {
        T top = row.m[h] > with.m[h] ? row.m[h] : with.m[h], shift = top == -INFINITY ? 0 : top;
        T own = NAME(exp_negative)(row.m[h] - shift), others = NAME(exp_negative)(with.m[h] - shift);
        row.m[h] = top;
        row.l[h] = row.l[h] * own + with.l[h] * others;
        for (int64_t f = h * n_feat; f < (h + 1) * n_feat; f++) row.acc[f] = row.acc[f] * own + with.acc[f] * others;
    }
}

/* Add a group of a long row's edges to a state of its own, and merge it into the row's state. Rounding errors grow with
 * the length of a sum, so long rows are summed in groups. */
static __attribute__((noinline)) void NAME(attend_group)(const NAME(online) *o, NAME(state) row, int64_t to, int64_t begin, int64_t end,
                                                         int step, int64_t first, int64_t last)
{
    T m[GROUP_HEADS], l[GROUP_HEADS], acc[GROUP_VALUES];
    const NAME(state) group = {m, l, acc};
    NAME(attend_edges)(o, group, to, begin, end, step, first, last, 1);
    NAME(join_states)(row, group, o->a->n_feat, first, last);
}

/* Compute row i for the heads first .. last, `step` edges at once. */
static void NAME(attend_row)(const NAME(online) *o, int64_t i, int step, int64_t first, int64_t last)
{
    const NAME(sar_attention) *a = o->a;
    const int64_t begin = a->csr.indptr[i], end = a->csr.indptr[i + 1], to = a->csr.rows ? (int64_t)a->csr.rows[i] : i;
    const int64_t some = end - begin > GROUP && HAS_GROUPS(a->n_heads, a->n_feat) ? begin + GROUP : end;
    const NAME(state) row = {o->rows.m + to * a->n_heads, o->rows.l + to * a->n_heads, o->rows.acc + to * a->n_heads * a->n_feat};
    NAME(attend_edges)(o, row, to, begin, some, step, first, last, o->begins);
    for (int64_t e = some; e < end; e += GROUP)
        NAME(attend_group)(o, row, to, e, end - e < GROUP ? end : e + GROUP, step, first, last);
}

/* A strip: several rows of at most LANES edges, whose coefficients are computed together, with one row in each lane of a
 * vector. With the edges of a single short row in the lanes, most lanes would be empty. */
typedef struct {
    int n_rows, n_most;     /* rows, and the most edges of one */
    int n[LANES];           /* edges of each; 0 behind the last row */
    int64_t to[LANES];      /* its row of m, l, acc, dst */
    const I *col[LANES];
} NAME(strip);

/* The strip of rows that starts at row i < end. n_rows = 0 if the strip would need more vectors than it has rows. */
SAR_INLINE void NAME(next_strip)(NAME(strip) *strip, const NAME(sar_csr) *csr, int64_t i, int64_t end)
{
    int count = 0, most = 0;
    for (; count < LANES && i < end; i++, count++) {
        int64_t n = csr->indptr[i + 1] - csr->indptr[i];
        if (n > LANES) break;
        strip->n[count] = (int)n;
        strip->to[count] = csr->rows ? (int64_t)csr->rows[i] : i;
        strip->col[count] = csr->indices + csr->indptr[i];
        if (n > most) most = (int)n;
    }
    strip->n_rows = most > count ? 0 : count, strip->n_most = most;
    for (; count < LANES; count++) strip->n[count] = 0;
}

/* The softmax of one head of a strip. The source scores s become coefficients, m and l of the rows are updated, and
 * correction[u] is the factor for acc of row u. Sums have the order of sum_all. */
SAR_INLINE void NAME(strip_softmax)(T s[LANES][LANES], T *restrict correction, const NAME(online) *o, const NAME(strip) *strip, int64_t h)
{
    const int most = strip->n_most;
    const int64_t n_heads = o->a->n_heads;
    const T slope = (T)o->a->slope;
    T dst[LANES] = {0}, old[LANES], top[LANES], before[LANES] = {0}, count[LANES], t[LANES / 2][LANES];
    for (int u = 0; u < LANES; u++) old[u] = -INFINITY, count[u] = (T)strip->n[u];
    for (int u = 0; u < strip->n_rows; u++) {
        int64_t ih = strip->to[u] * n_heads + h;
        dst[u] = o->dst[ih];
        if (!o->begins) old[u] = o->rows.m[ih], before[u] = o->rows.l[ih];
    }
    for (int u = 0; u < LANES; u++) top[u] = old[u];
    for (int k = 0; k < most; k++)
        for (int u = 0; u < LANES; u++) {
            T pre = s[k][u] + dst[u], score = pre > 0 ? pre : slope * pre;
            score = (T)k < count[u] ? score : -INFINITY;
            s[k][u] = score;
            top[u] = score > top[u] ? score : top[u];
        }
    T shift[LANES];
    for (int u = 0; u < LANES; u++) shift[u] = top[u] == -INFINITY ? 0 : top[u];
    for (int k = 0; k < most; k++)
        for (int u = 0; u < LANES; u++) s[k][u] = NAME(exp_negative)(s[k][u] - shift[u]);
    for (int u = 0; u < LANES; u++) {
        T moved = NAME(exp_negative)(old[u] - shift[u]);
        correction[u] = old[u] == -INFINITY ? 1 : moved;
    }
    for (int k = 0; k < LANES / 2; k++) {
        if (k + LANES / 2 < most) for (int u = 0; u < LANES; u++) t[k][u] = s[k][u] + s[k + LANES / 2][u];
        else if (k < most) for (int u = 0; u < LANES; u++) t[k][u] = s[k][u];
        else for (int u = 0; u < LANES; u++) t[k][u] = 0;
    }
    for (int half = LANES / 4; half; half /= 2)
        for (int k = 0; k < half; k++) for (int u = 0; u < LANES; u++) t[k][u] += t[k + half][u];
    for (int u = 0; u < strip->n_rows; u++) {
        int64_t ih = strip->to[u] * n_heads + h;
        o->rows.l[ih] = before[u] * correction[u] + t[0][u];
        o->rows.m[ih] = top[u];
    }
}

/* Apply dropout to the coefficients of `n_heads` heads of a strip, from head h on, which is a multiple of 4. */
SAR_INLINE void NAME(strip_dropout)(T s[STRIP_HEADS][LANES][LANES], const NAME(online) *o, const NAME(strip) *strip, int64_t h,
                                    int n_heads)
{
    const struct sar_edge_dropout *d = &o->a->dropout;
    const uint32_t threshold = philox_threshold(d->p);
    const T keep = (T)(1 / (1 - d->p));
    uint64_t edge_id[LANES];
    uint32_t word[4][CHUNK];
    for (int k = 0; k < strip->n_most; k++) {
        for (int u = 0; u < LANES; u++)
            edge_id[u] = k < strip->n[u] ? (uint64_t)d->src_ids[strip->col[u][k]] * d->n_nodes + (uint64_t)d->dst_ids[strip->to[u]] : 0;
        for (int q = 0; q < n_heads; q++) {
            if (q % 4 == 0) NAME(edge_words)(word, edge_id, LANES, (uint32_t)((h + q) / 4), d->key);
            for (int u = 0; u < LANES; u++) {
                T kept = s[q][k][u] * keep;
                s[q][k][u] = word[q % 4][u] < threshold ? 0 : kept;
            }
        }
    }
}

/* Add the edges of a strip for `n_heads` <= STRIP_HEADS heads, from head h on. */
static void NAME(attend_strip)(const NAME(online) *o, const NAME(strip) *strip, int64_t h, int n_heads)
{
    const NAME(sar_attention) *a = o->a;
    T s[STRIP_HEADS][LANES][LANES], correction[STRIP_HEADS][LANES], coef[LANES];
    for (int q = 0; q < n_heads; q++) memset(s[q], 0, (size_t)strip->n_most * LANES * sizeof(T));
    for (int u = 0; u < strip->n_rows; u++)
        for (int k = 0; k < strip->n[u]; k++) {
            const T *restrict scores = a->src + (int64_t)strip->col[u][k] * a->n_heads + h;
            for (int q = 0; q < n_heads; q++) s[q][k][u] = scores[q];
        }
    for (int q = 0; q < n_heads; q++) NAME(strip_softmax)(s[q], correction[q], o, strip, h + q);
    if (a->dropout.src_ids) NAME(strip_dropout)(s, o, strip, h, n_heads);
    for (int u = 0; u < strip->n_rows; u++)
        for (int q = 0; q < n_heads; q++) {
            for (int k = 0; k < strip->n[u]; k++) coef[k] = s[q][k][u];
            T *acc = o->rows.acc + (strip->to[u] * a->n_heads + h + q) * a->n_feat;
            NAME(add_rows)(o, acc, h + q, strip->col[u], coef, strip->n[u], correction[q][u], o->begins);
        }
}

/* Compute part `part` of n_parts of the rows of sar_attend_forward, for the heads first .. last. */
static void NAME(attend_rows)(const NAME(online) *o, int step, int64_t part, int64_t n_parts, int64_t first, int64_t last)
{
    const NAME(sar_attention) *a = o->a;
    const int64_t *restrict indptr = a->csr.indptr, n_rows = a->csr.n_rows;
    const int64_t begin = sar_split_rows(indptr, n_rows, part, n_parts), end = sar_split_rows(indptr, n_rows, part + 1, n_parts);
    NAME(strip) strip;
    for (int64_t i = begin; i < end;) {
        NAME(next_strip)(&strip, &a->csr, i, end);
        if (strip.n_rows == 0) {
            NAME(attend_row)(o, i++, step, first, last);
            continue;
        }
        int64_t behind = indptr[i + strip.n_rows], n = behind - indptr[i];
        NAME(prefetch_scores)(a->src, a->n_heads * (int64_t)sizeof(T), a->csr.indices + behind, (int)n, indptr[n_rows] - behind);
        for (int64_t h = first; h < last; h += STRIP_HEADS)
            NAME(attend_strip)(o, &strip, h, last - h < STRIP_HEADS ? (int)(last - h) : STRIP_HEADS);
        i += strip.n_rows;
    }
}

/* One block of edges of the online softmax:
 *   i = rows[row], or the row;  s_e = leaky_relu(src[j,h] + dst[i,h]);  m' = max(m, max_e s_e)
 *   l = l * exp(m - m') + sum_e exp(s_e - m');  acc = acc * exp(m - m') + sum_e mask_e/(1-p) * exp(s_e - m') *
 *   z[j,h,:]
 *
 * inputs   dst (n_out, n_heads); a: its fields are described in prototypes_rows.h; its indices are the sources j
 * output   m, l (n_out, n_heads), acc (n_out, n_heads, n_feat): updated; with accumulate = 0 the rows i
 *          start at -inf, 0, 0, whatever they hold. Dropout does not change m and l.
 * cost     O(n_edges * n_heads * n_feat); the stack holds CHUNK edges, nothing is kept per edge. acc is corrected
 *          once a step.
 */
int NAME(sar_attend_forward)(T *restrict m, T *restrict l, T *restrict acc, const T *restrict dst, const NAME(sar_attention) *a,
                             int accumulate)
{
    const int64_t *restrict indptr = a->csr.indptr, n_heads = a->n_heads, n_feat = a->n_feat;
    const int64_t together = NAME(heads_together)(n_heads, a->z_heads, n_feat, a->dropout.src_ids != NULL);
    const int64_t rest = n_heads ? n_heads % together : 0;
    int step = NAME(step_edges)(a->z_heads < n_heads ? a->z_heads : together, n_feat), rest_step = NAME(step_edges)(rest, n_feat);
    int team = sar_team((indptr[a->csr.n_rows] - indptr[0]) * n_heads * (n_feat + 16));
    int64_t n_parts = team == 1 ? 1 : team * SAR_PARTS;
    const NAME(online) o = {{m, l, acc}, dst, a, !accumulate, NAME(is_near)(a->n_src, a->z_heads * n_feat)};
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (int64_t part = 0; part < n_parts; part++) {
        NAME(attend_rows)(&o, step, part, n_parts, 0, n_heads - rest);
        if (rest) NAME(attend_rows)(&o, rest_step, part, n_parts, n_heads - rest, n_heads);
    }
    return SAR_OK;
}
#endif
