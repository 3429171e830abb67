/* Kernels for each T and I; outputs, inputs, sizes. build.py reads this file for cffi. A field that a caller leaves
 * out is NULL or 0. */

/* Edges by row: row i has the edges e = indptr[i] .. indptr[i + 1]. Rows are destinations; of a transpose sources. */
typedef struct {
    const int64_t *indptr;  /* (n_rows + 1) */
    const I *indices;       /* (n_edges): the row at the other end; NULL: e */
    const I *rows;          /* (n_rows), unique: the row of other arrays that row i is; NULL: i */
    const I *eid;           /* (n_edges): which of the edges' values is that of e; NULL: e */
    int64_t n_rows;
} NAME(sar_csr);

/* What a weighted sum over edges reads. NULL means 1. */
typedef struct {
    NAME(sar_csr) csr;
    const T *x;                         /* (n_src, n_heads, n_feat) */
    const T *weight;                    /* (., n_heads), by eid */
    const T *src_scale, *dst_scale;     /* (n_src), (n_out) */
    int64_t n_src, n_heads, n_feat;
} NAME(sar_sum);

/* What edges call the rows that they lead from, and which of two labels comes first. */
typedef struct {
    const I *label;         /* (n_edges); NULL: offset + r, r the row */
    const int64_t *order;   /* (n_order): by label; NULL: the label itself */
    int64_t offset, n_order;
} NAME(sar_labels);

/* What attention reads in both directions. */
typedef struct {
    NAME(sar_csr) csr;  /* rows: destinations forward, sources backward; no eid */
    const T *z, *src;   /* (n_src, z_heads, n_feat), (n_src, n_heads) */
    struct sar_edge_dropout dropout;
    double slope;
    int64_t n_src, n_heads, z_heads, n_feat;    /* z_heads: n_heads, or 1 where all heads share z */
} NAME(sar_attention);

int NAME(sar_spmm_forward)(T *restrict out, const NAME(sar_sum) *sum, int accumulate);
int NAME(sar_edge_dot_forward)(T *restrict out, const T *restrict g, const NAME(sar_sum) *sum);
int NAME(sar_extremum_forward)(T *restrict out, I *restrict arg, const NAME(sar_csr) *csr, const NAME(sar_labels) *labels,
                               const T *restrict x, int sign, int64_t n_feat);
int NAME(sar_extremum_backward)(T *restrict dx, const T *restrict g, const I *restrict arg, int64_t offset, int64_t n_dst,
                                int64_t n_src, int64_t n_feat);
int NAME(sar_attend_forward)(T *restrict m, T *restrict l, T *restrict acc, const T *restrict dst, const NAME(sar_attention) *a,
                             int accumulate);
int NAME(sar_attend_backward)(T *restrict dz, T *restrict dsrc, double *restrict sums, const T *restrict ends, const T *restrict g,
                              const NAME(sar_attention) *a, int accumulate, int64_t n_threads, int64_t n_dst);
int NAME(sar_gather_rows_forward)(T *restrict out, const T *restrict x, const I *restrict index, int64_t n_rows,
                                  int64_t n_index, int64_t n_feat);
int NAME(sar_gather_rows_backward)(T *restrict out, const T *restrict rows, const I *restrict index, int64_t n_rows,
                                   int64_t n_index, int64_t n_feat);
int NAME(sar_exact_spmm_forward)(double *restrict out, const double *restrict grid, const NAME(sar_sum) *sum, int accumulate);
int NAME(sar_exact_attend_forward)(double *restrict l, double *restrict acc, const double *restrict grid_l, const double *restrict grid,
                                   const T *restrict m, const T *restrict dst, const NAME(sar_attention) *a);
int NAME(sar_exact_attend_backward)(double *restrict dz, double *restrict dsrc, double *restrict sums, const double *restrict grid_z,
                                    const double *restrict grid_s, const T *restrict ends, const T *restrict g,
                                    const NAME(sar_attention) *a, int64_t n_threads, int64_t n_dst);
