/* Kernels over edges for each T and I, and the type S of the rows that edges gather: T, or bfloat16 with a T of
 * float; outputs, inputs, sizes. build.py reads this file for cffi. A field that a caller leaves out is NULL or 0. */

/* Edges by row: row i has the edges e = indptr[i] .. indptr[i + 1]. Rows are destinations; of a transpose sources. */
typedef struct {
    const int64_t *indptr;  /* (n_rows + 1) */
    const I *indices;       /* (n_edges): the row at the other end; NULL: e */
    const I *rows;          /* (n_rows), unique: the row of other arrays that row i is; NULL: i */
    const I *eid;           /* (n_edges): which of the edges' values is that of e; NULL: e */
    int64_t n_rows;
} NAME(sar_csr);

/* Inputs of a weighted sum over edges. NULL stands for factors of 1. */
typedef struct {
    NAME(sar_csr) csr;
    const S *x;                         /* (n_src, n_heads, n_feat) */
    const T *weight;                    /* (., n_heads), by eid */
    const T *src_scale, *dst_scale;     /* (n_src), (n_out) */
    int64_t n_src, n_heads, n_feat;
} NAME(sar_sum);

/* Inputs of attention, for both directions. */
typedef struct {
    NAME(sar_csr) csr;  /* rows: destinations forward, sources backward; no eid */
    const S *z;         /* (n_src, z_heads, n_feat) */
    const T *src;       /* (n_src, n_heads) */
    struct sar_edge_dropout dropout;
    double slope;
    int64_t n_src, n_heads, z_heads, n_feat;    /* z_heads: n_heads, or 1 where all heads share z */
} NAME(sar_attention);

int NAME(sar_spmm_forward)(T *restrict out, const NAME(sar_sum) *sum, int accumulate);
int NAME(sar_edge_dot_forward)(T *restrict out, const S *restrict g, const NAME(sar_sum) *sum);
int NAME(sar_attend_forward)(T *restrict m, T *restrict l, T *restrict acc, const T *restrict dst, const NAME(sar_attention) *a,
                             int accumulate);
int NAME(sar_attend_backward)(T *restrict dz, T *restrict dsrc, double *restrict sums, const T *restrict ends, const S *restrict g,
                              const NAME(sar_attention) *a, int accumulate, int64_t n_threads, int64_t n_dst);
