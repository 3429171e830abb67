/* Sampling of in-edges. A pick is a position in a row of a CSR, drawn by Philox from a key, the row's global id and the
 * number of the draw. So it does not depend on the rank, on threads, or on the other rows of the call. */
#ifndef I
#include "philox.h"
#define KERNEL "sample.c"
#include "each_indices.h"
#else
#include "philox_wide.h"
#ifndef SAMPLE_GROUP
#define SAMPLE_GROUP 16         /* rows, or sources, whose words are drawn side by side, one a lane */
#define SAMPLE_FEW 32           /* up to so many draws a row are made side by side; more row by row, in the workspace */
#define SAMPLE_CHUNK 256        /* rows that a thread takes at once */
#define NO_LOOP UINT32_MAX
#define LINE_INDICES (int64_t)(64 / sizeof(I))
#define LABOR_AHEAD 8                               /* cache lines of a row that are asked for before it is read */

struct sample_group {
    int64_t start[SAMPLE_GROUP];        /* the row's first edge */
    uint64_t id[SAMPLE_GROUP];
    uint32_t degree[SAMPLE_GROUP];      /* without an added loop */
    uint32_t loop[SAMPLE_GROUP];        /* where in the row the added loop stands, or NO_LOOP */
    uint32_t chosen[SAMPLE_FEW][SAMPLE_GROUP];
};

struct sample_pick {
    uint64_t variate, offset;
};

/* Philox4x32-10 of SAMPLE_GROUP counters: word[w][lane]. */
#ifdef PHILOX_LANES
static void philox_lanes(uint32_t word[4][SAMPLE_GROUP], uint64_t key)
{
    enum { N = SAMPLE_GROUP / PHILOX_LANES };
    typedef uint32_t narrow __attribute__((vector_size(4 * PHILOX_LANES)));
    philox_wide w[4][4];
    narrow some;
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < N; v++) {
            memcpy(&some, word[k] + PHILOX_LANES * v, sizeof some);
            w[k][v] = __builtin_convertvector(some, philox_wide);
        }
    philox_rounds(w, N, key);
    for (int k = 0; k < 4; k++)
        for (int v = 0; v < N; v++) {
            some = __builtin_convertvector(w[k][v], narrow);
            memcpy(word[k] + PHILOX_LANES * v, &some, sizeof some);
        }
}
#else
static void philox_lanes(uint32_t word[4][SAMPLE_GROUP], uint64_t key)
{
    uint32_t *restrict w0 = word[0], *restrict w1 = word[1], *restrict w2 = word[2], *restrict w3 = word[3];
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
#pragma omp simd
        for (int l = 0; l < SAMPLE_GROUP; l++) {
            uint64_t product0 = (uint64_t)0xD2511F53u * w0[l];
            uint64_t product1 = (uint64_t)0xCD9E8D57u * w2[l];
            w0[l] = (uint32_t)(product1 >> 32) ^ w1[l] ^ key0;
            w2[l] = (uint32_t)(product0 >> 32) ^ w3[l] ^ key1;
            w1[l] = (uint32_t)product1;
            w3[l] = (uint32_t)product0;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}
#endif

/* Compute the random words of the counters (id, block, 0) of all lanes. */
static void sample_words(uint32_t word[4][SAMPLE_GROUP], const uint64_t *restrict id, uint32_t block, uint64_t key)
{
    for (int l = 0; l < SAMPLE_GROUP; l++) {
        word[0][l] = (uint32_t)id[l];
        word[1][l] = (uint32_t)(id[l] >> 32);
        word[2][l] = block;
        word[3][l] = 0;
    }
    philox_lanes(word, key);
}

/* Return draw t of a row: an integer below n, all equally likely (Lemire, Fast random integer generation in an interval,
 * 2019). It comes from word t % 4 of the counter (id, t / 4, attempt). A word that would make some integers more likely
 * is rejected, and the next attempt draws again. */
static uint32_t sample_below(uint32_t n, uint64_t id, uint64_t key, uint64_t t)
{
    uint32_t threshold = (0u - n) % n;
    for (uint32_t attempt = 0;; attempt++) {
        uint32_t word[4] = {(uint32_t)id, (uint32_t)(id >> 32), (uint32_t)(t / 4), attempt};
        philox4x32(word, (uint32_t)key, (uint32_t)(key >> 32));
        uint64_t product = (uint64_t)word[t % 4] * n;
        if ((uint32_t)product >= threshold) return (uint32_t)(product >> 32);
    }
}

/* chosen[0 .. k][lane]: k offsets into each row, ascending; without `replace` distinct, by Floyd's method (Bentley
 * and Floyd, A sample of brilliance, 1987): draw t is one of the first degree - k + t + 1 offsets, or the last of
 * them where it was chosen before. The result is undefined for rows with k edges or fewer. */
static void sample_few(struct sample_group *restrict g, uint64_t key, int k, int replace)
{
    uint32_t word[4][SAMPLE_GROUP], base[SAMPLE_GROUP], n[SAMPLE_GROUP], r[SAMPLE_GROUP];
#pragma omp simd
    for (int l = 0; l < SAMPLE_GROUP; l++) {
        uint32_t drop = replace ? 0 : (uint32_t)k - 1;
        base[l] = g->degree[l] > drop ? g->degree[l] - drop : 1;
    }
    for (int t = 0; t < k; t++) {
        uint32_t uneven = 0, more = replace ? 0 : (uint32_t)t;
        if (t % 4 == 0) sample_words(word, g->id, (uint32_t)t / 4, key);
        const uint32_t *restrict drawn = word[t % 4];
#pragma omp simd reduction(| : uneven)
        for (int l = 0; l < SAMPLE_GROUP; l++) {
            n[l] = base[l] + more;
            uint64_t product = (uint64_t)drawn[l] * n[l];
            r[l] = (uint32_t)(product >> 32);
            uneven |= (uint32_t)product < n[l];
        }
        if (uneven)
            for (int l = 0; l < SAMPLE_GROUP; l++) r[l] = sample_below(n[l], g->id[l], key, (uint64_t)t);
        if (!replace) {
            uint32_t taken[SAMPLE_GROUP] = {0};
            for (int s = 0; s < t; s++) {
                const uint32_t *restrict held = g->chosen[s];
#pragma omp simd
                for (int l = 0; l < SAMPLE_GROUP; l++) taken[l] |= held[l] == r[l];
            }
#pragma omp simd
            for (int l = 0; l < SAMPLE_GROUP; l++) r[l] = taken[l] ? n[l] - 1 : r[l];
        }
        for (int s = 0; s < t; s++) {   /* put it in its place: the larger of the two moves on */
            uint32_t *restrict held = g->chosen[s];
#pragma omp simd
            for (int l = 0; l < SAMPLE_GROUP; l++) {
                uint32_t small = held[l] < r[l] ? held[l] : r[l];
                r[l] = held[l] < r[l] ? r[l] : held[l];
                held[l] = small;
            }
        }
        memcpy(g->chosen[t], r, sizeof r);
    }
}

/* Sift heap[i] down among n items, so that no parent is smaller than its children. */
static void sample_sink(struct sample_pick *heap, int64_t i, int64_t n)
{
    struct sample_pick moved = heap[i];
    for (int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && (heap[child + 1].variate > heap[child].variate
                              || (heap[child + 1].variate == heap[child].variate && heap[child + 1].offset > heap[child].offset))) child++;
        if (heap[child].variate < moved.variate || (heap[child].variate == moved.variate && heap[child].offset < moved.offset)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* Sort picks by (variate, offset), ascending: heapsort. */
static void sample_sort(struct sample_pick *picks, int64_t n)
{
    for (int64_t i = n / 2 - 1; i >= 0; i--) sample_sink(picks, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        struct sample_pick top = picks[0];
        picks[0] = picks[end];
        picks[end] = top;
        sample_sink(picks, 0, end);
    }
}

/* k offsets into one row of more than k edges (or any, with `replace`), ascending in picks[].offset. `taken`, of
 * 2^bits > 2 k places, is an open-addressing set of the offsets chosen. */
static void sample_many(struct sample_pick *picks, uint64_t *taken, int bits, uint32_t degree, uint64_t id, uint64_t key, int64_t k,
                        int replace)
{
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    if (!replace) memset(taken, 0xff, (size_t)(mask + 1) * sizeof *taken);
    for (int64_t t = 0; t < k; t++) {
        uint32_t n = replace ? degree : (uint32_t)(degree - k + t + 1);
        uint64_t r = sample_below(n, id, key, (uint64_t)t);
        for (int again = 0; !replace && again < 2; again++) {
            uint64_t at = (r * 0x9E3779B97F4A7C15u) >> (64 - bits);
            while (taken[at] != UINT64_MAX && taken[at] != r) at = (at + 1) & mask;
            if (taken[at] != r) {
                taken[at] = r;
                break;
            }
            r = n - 1;
        }
        picks[t].variate = r;
        picks[t].offset = r;
    }
    sample_sort(picks, k);
}
#endif

/* Arrays that one thread writes its picks to. */
typedef struct {
    I *sources, *positions;
    uint64_t *seen, *summary;
} NAME(sample_out);

/* The position of an added self loop in its row: the position of the row's own id among the ascending source ids. */
static uint32_t NAME(sample_find)(const I *restrict sources, const int64_t *restrict src_ids, int64_t n, I row)
{
    int64_t low = 0, high = n, id = src_ids ? src_ids[row] : (int64_t)row;
    while (low < high) {
        int64_t middle = low + (high - low) / 2, found = src_ids ? src_ids[sources[middle]] : (int64_t)sources[middle];
        if (found < id) low = middle + 1;
        else high = middle;
    }
    return (uint32_t)low;
}

/* Fill the lanes of a group with the rows i .. i + n. Further lanes stand for rows without edges. */
static void NAME(sample_open)(struct sample_group *restrict g, const NAME(sar_sampling) *s, const I *restrict rows, int n)
{
    for (int l = 0; l < SAMPLE_GROUP; l++) {
        g->start[l] = 0;
        g->id[l] = 0;
        g->degree[l] = 0;
        g->loop[l] = NO_LOOP;
        if (l >= n) continue;
        int64_t row = rows[l], start = s->indptr[row], degree = s->indptr[row + 1] - start;
        g->start[l] = start;
        g->id[l] = s->dst_ids ? (uint64_t)s->dst_ids[row] : (uint64_t)row;
        if (s->loops && s->loops[row]) {
            g->loop[l] = NAME(sample_find)(s->indices + start, s->src_ids, degree, (I)row);
            degree--;
        }
        g->degree[l] = (uint32_t)degree;
    }
}

/* Mark a source: set its bit in the thread's `seen`, and the bit of its 64 columns in the thread's `summary`. */
SAR_INLINE void NAME(sample_mark)(const NAME(sample_out) *out, I source)
{
    out->seen[source >> 6] |= (uint64_t)1 << (source & 63);
    out->summary[source >> 12] |= (uint64_t)1 << (source >> 6 & 63);
}

SAR_INLINE void NAME(sample_put)(const NAME(sample_out) *out, const I *restrict indices, int64_t to, int64_t position)
{
    I source = indices[position];
    out->sources[to] = source;
    if (out->positions) out->positions[to] = (I)position;
    if (out->seen) NAME(sample_mark)(out, source);
}

/* Write the picks of lane l, and the added self loop at its position. Pick t is edge offsets[t * stride] of the row, not
 * counting the added loop; with offsets = NULL all edges are picked. */
static void NAME(sample_write)(const NAME(sample_out) *out, const I *restrict indices, int64_t to, int64_t start, uint32_t loop,
                               const uint32_t *restrict offsets, int64_t stride, int64_t n)
{
    if (!offsets || loop == NO_LOOP) {
        for (int64_t t = 0; t < n; t++) NAME(sample_put)(out, indices, to + t, start + (offsets ? (int64_t)offsets[t * stride] : t));
        return;
    }
    int pending = 1;
    for (int64_t t = 0; t < n; t++) {
        int64_t offset = offsets[t * stride];
        if (pending && offset >= loop) {
            NAME(sample_put)(out, indices, to++ + t, start + loop);
            pending = 0;
        }
        NAME(sample_put)(out, indices, to + t, start + offset + !pending);
    }
    if (pending) NAME(sample_put)(out, indices, to + n, start + loop);
}

/* The variates of a group of sources: words 0 and 1 of the counter (id, which of parallel edges). */
SAR_INLINE void NAME(sample_variates)(uint64_t variate[SAMPLE_GROUP], const I *sources, const int64_t *restrict src_ids,
                                      const uint32_t which[SAMPLE_GROUP], uint64_t key)
{
    uint32_t word[4][SAMPLE_GROUP];
    for (int l = 0; l < SAMPLE_GROUP; l++) variate[l] = (uint64_t)sources[l];
    if (src_ids)
        for (int l = 0; l < SAMPLE_GROUP; l++) variate[l] = (uint64_t)src_ids[sources[l]];
#pragma omp simd
    for (int l = 0; l < SAMPLE_GROUP; l++) {
        word[0][l] = (uint32_t)variate[l];
        word[1][l] = (uint32_t)(variate[l] >> 32);
        word[2][l] = which[l];
        word[3][l] = 0;
    }
    philox_lanes(word, key);
#pragma omp simd
    for (int l = 0; l < SAMPLE_GROUP; l++) variate[l] = (uint64_t)word[1][l] << 32 | word[0][l];
}

/* The offsets of the k smallest variates of a row of more than k edges, ascending in picks[].offset. An edge's
 * variate is words 0 and 1 of the counter (source id, how many edges of this row from the same source stand before
 * it). */
static void NAME(sample_smallest)(struct sample_pick *picks, const NAME(sar_sampling) *s, int64_t start, uint32_t degree,
                                  uint32_t loop)
{
    const I *restrict sources = s->indices + start;
    const int64_t k = s->k;
    uint32_t same = 0;
    I last = -1;                                        /* the source before */
    for (int64_t first = 0; first < degree; first += SAMPLE_GROUP) {
        int n = degree - first < SAMPLE_GROUP ? (int)(degree - first) : SAMPLE_GROUP, repeated = 0, better = first < k;
        int before = loop <= first ? 0 : loop - first < n ? (int)(loop - first) : n;   /* of these, how many stand before the loop */
        I block[SAMPLE_GROUP];
        const I *next = sources + first + (before == 0);
        if (n < SAMPLE_GROUP || (before && before < n)) {
            for (int l = 0; l < SAMPLE_GROUP; l++) {
                int at = l < n ? l : n - 1;
                block[l] = sources[first + at + (at >= before)];
            }
            next = block;
        }
        for (int l = 1; l < SAMPLE_GROUP; l++) repeated |= (next[l] == next[l - 1]) & (l < n);
        repeated |= next[0] == last;
        uint64_t variate[SAMPLE_GROUP];
        if (s->variates && !repeated)
            for (int l = 0; l < SAMPLE_GROUP; l++) variate[l] = s->variates[next[l]];
        else {
            uint32_t which[SAMPLE_GROUP] = {0};
            for (int l = 0; repeated && l < n; l++) which[l] = same = next[l] == (l ? next[l - 1] : last) ? same + 1 : 0;
            NAME(sample_variates)(variate, next, s->src_ids, which, s->key);
        }
        if (!repeated) same = 0;
        last = next[n - 1];
        for (int l = 0; first >= k && l < SAMPLE_GROUP; l++) better |= variate[l] < picks[0].variate;
        for (int l = 0; l < n && better; l++) {
            struct sample_pick pick = {variate[l], (uint64_t)(first + l)};
            if (first + l < k) {
                picks[first + l] = pick;
                if (first + l == k - 1)
                    for (int64_t i = k / 2 - 1; i >= 0; i--) sample_sink(picks, i, k);
            } else if (pick.variate < picks[0].variate) {
                picks[0] = pick;
                sample_sink(picks, 0, k);
            }
        }
    }
    for (int64_t t = 0; t < k; t++) picks[t].variate = picks[t].offset;
    sample_sort(picks, k);
}

/* Draw the picks of a group, and prefetch the edges that were picked. */
static void NAME(sample_draw)(struct sample_group *restrict g, const NAME(sar_sampling) *s)
{
    const I *restrict indices = s->indices;
    const int64_t k = s->k;
    const int kind = s->kind;
    for (int l = 0; kind == SAR_LABOR && l < SAMPLE_GROUP; l++)
        for (int64_t t = 0; t < g->degree[l] && t < LABOR_AHEAD * LINE_INDICES; t += LINE_INDICES)
            SAR_PREFETCH_NEAR(indices + g->start[l] + t);
    if (kind == SAR_LABOR || k > SAMPLE_FEW) return;
    int all = 1;
    for (int l = 0; l < SAMPLE_GROUP; l++) all &= kind == SAR_UNIFORM && g->degree[l] <= (uint32_t)k;
    if (!all) sample_few(g, s->key, (int)k, kind == SAR_REPLACE);
    for (int l = 0; l < SAMPLE_GROUP; l++) {
        int few = kind == SAR_UNIFORM && g->degree[l] <= (uint32_t)k;   /* then all of its edges */
        for (int64_t t = 0; t < (few ? (g->degree[l] + LINE_INDICES - 1) / LINE_INDICES : k); t++)
            SAR_PREFETCH_NEAR(indices + g->start[l] + (few ? t * LINE_INDICES : (int64_t)g->chosen[t][l]));
    }
}

/* Write the picks of a group, the rows i .. i + n. */
static void NAME(sample_close)(const NAME(sample_out) *out, const NAME(sar_sampling) *s, const struct sample_group *restrict g,
                               const int64_t *restrict out_indptr, uint64_t *workspace, int bits, int n)
{
    const int64_t k = s->k;
    const int kind = s->kind;
    struct sample_pick few_picks[SAMPLE_FEW], *picks = k > SAMPLE_FEW ? (struct sample_pick *)workspace : few_picks;
    uint32_t few_offsets[SAMPLE_FEW], *offsets = k > SAMPLE_FEW ? (uint32_t *)(workspace + 2 * k) : few_offsets;  /* where the set was */
    for (int l = 0; l < n; l++) {
        int64_t to = out_indptr[l], start = g->start[l];
        if (g->degree[l] == 0 || (kind != SAR_REPLACE && g->degree[l] <= k)) {
            NAME(sample_write)(out, s->indices, to, start, g->loop[l], NULL, 0, out_indptr[l + 1] - to);
            continue;
        }
        if (kind != SAR_LABOR && k <= SAMPLE_FEW) {
            NAME(sample_write)(out, s->indices, to, start, g->loop[l], &g->chosen[0][l], SAMPLE_GROUP, k);
            continue;
        }
        if (kind == SAR_LABOR) NAME(sample_smallest)(picks, s, start, g->degree[l], g->loop[l]);
        else sample_many(picks, workspace + 2 * k, bits, g->degree[l], g->id[l], s->key, k, kind == SAR_REPLACE);
        for (int64_t t = 0; t < k; t++) offsets[t] = (uint32_t)picks[t].offset;
        NAME(sample_write)(out, s->indices, to, start, g->loop[l], offsets, 1, k);
    }
}

/* out_indptr[i] = the number of picks of the rows before row i. A row of d edges gets min(k, d) picks, or with replacement
 * k picks if d > 0, and one more for an added self loop.
 *
 * inputs   s, without indices, ids and key; see prototypes_indices.h
 * output   out_indptr (n_rows + 1), overwritten
 * status   SAR_DEGREE_TOO_LARGE: a row has 2^32 - 1 edges or more
 * cost     O(n_rows)
 */
int NAME(sar_sample_counts)(int64_t *restrict out_indptr, const NAME(sar_sampling) *s)
{
    const int64_t *restrict indptr = s->indptr, k = s->k, n_rows = s->n_rows;
    const uint8_t *restrict loops = s->loops;
    const I *restrict rows = s->rows;
    const int kind = s->kind;
    int team = sar_team(4 * n_rows), status = SAR_OK;
#pragma omp parallel for num_threads(team) schedule(static) reduction(| : status)
    for (int64_t i = 0; i < n_rows; i++) {
        int64_t row = rows[i], loop = loops && loops[row], degree = indptr[row + 1] - indptr[row] - loop;
        if (degree >= UINT32_MAX) status |= SAR_DEGREE_TOO_LARGE;
        out_indptr[i + 1] = loop + (degree > k || (kind == SAR_REPLACE && degree > 0) ? k : degree);
    }
    out_indptr[0] = 0;
    for (int64_t i = 0; i < n_rows; i++) out_indptr[i + 1] += out_indptr[i];
    return status;
}

/* variates[i] of the first edge from each column i, as SAR_LABOR draws it
 *
 * inputs   s: src_ids, which may be NULL, and key; n columns
 * output   variates (n), overwritten
 * cost     O(n)
 */
int NAME(sar_sample_variates)(uint64_t *restrict variates, const NAME(sar_sampling) *s, int64_t n)
{
    const uint32_t first[SAMPLE_GROUP] = {0};
    int team = sar_team(16 * n);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t begin = 0; begin < n; begin += SAMPLE_GROUP) {
        int64_t some = n - begin < SAMPLE_GROUP ? n - begin : SAMPLE_GROUP;
        uint64_t variate[SAMPLE_GROUP];
        I column[SAMPLE_GROUP];
        for (int64_t l = 0; l < SAMPLE_GROUP; l++) column[l] = (I)(begin + (l < some ? l : 0));
        NAME(sample_variates)(variate, column, s->src_ids, first, s->key);
        memcpy(variates + begin, variate, (size_t)some * sizeof *variate);
    }
    return SAR_OK;
}

/* Pick in-edges of each row. SAR_UNIFORM picks k distinct edges, SAR_REPLACE draws k edges with replacement, and SAR_LABOR
 * picks the k edges whose sources have the smallest variates, which all rows share (LABOR-0: Balin and Catalyurek,
 * Layer-neighbor sampling, 2023). Except with SAR_REPLACE, a row of k edges or fewer picks all of them. An added self loop
 * is always picked and does not count.
 *
 * inputs   s, see prototypes_indices.h; out_indptr (n_rows + 1) that sar_sample_counts computes for s
 *          workspace (n_threads, n_workspace), where k > SAMPLE_FEW and a row may exceed k: n_workspace = 2 k +
 *          2^bits, 2^bits > 2 k
 * output   sources, positions (n_picks): each pick's source and its position in `indices`, ascending in a row,
 *          overwritten; positions may be NULL
 *          numbering's seen and summary: a bit for each source among the columns, and for each 64 columns with one;
 *          each thread, of which there are no more than numbering's, sets its own. NULL: nothing is noted
 * cost     O(n_picks), times log k where k > SAMPLE_FEW; for SAR_LABOR O(edges of the rows)
 */
int NAME(sar_sample)(I *restrict sources, I *restrict positions, const NAME(sar_numbering) *numbering, uint64_t *restrict workspace,
                     const int64_t *restrict out_indptr, const NAME(sar_sampling) *s, int64_t n_workspace, int64_t n_threads)
{
    const int64_t n_rows = s->n_rows, k = s->k;
    int team = sar_team((out_indptr[n_rows] + n_rows) * (s->kind == SAR_LABOR ? 64 : 8)), bits = 0;
    while (k > SAMPLE_FEW && ((int64_t)1 << bits) < n_workspace - 2 * k) bits++;
    if (team > n_threads) team = (int)n_threads;
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t begin = 0; begin < n_rows; begin += SAMPLE_CHUNK) {
        int64_t end = begin + SAMPLE_CHUNK < n_rows ? begin + SAMPLE_CHUNK : n_rows, before = begin;
        int64_t rank = sar_team_rank();
        uint64_t *own = workspace ? workspace + rank * n_workspace : NULL;
        const NAME(sample_out) out = {sources, positions, numbering ? numbering->seen + rank * numbering->n_words : NULL,
                                      numbering ? numbering->summary + rank * (numbering->n_words / 64) : NULL};
        struct sample_group groups[2];
        int n_before = 0, which = 0;
        for (int64_t i = begin; i < end || n_before; i += SAMPLE_GROUP) {       /* a group is written when the next one is drawn */
            int n = end - i > SAMPLE_GROUP ? SAMPLE_GROUP : end > i ? (int)(end - i) : 0;
            if (n) {
                NAME(sample_open)(&groups[which], s, s->rows + i, n);
                NAME(sample_draw)(&groups[which], s);
            }
            if (n_before) NAME(sample_close)(&out, s, &groups[!which], out_indptr + before, own, bits, n_before);
            before = i;
            n_before = n;
            which = !which;
        }
    }
    return SAR_OK;
}
#endif
