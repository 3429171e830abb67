/* Kernels for each T and I; outputs, inputs, sizes. build.py reads this file, with the types of prototypes_rows.h, for
 * cffi. A field that a caller leaves out is NULL or 0. */

/* Labels of the candidate rows of an extremum, and the priority of labels at ties. */
typedef struct {
    const I *label;         /* (n_edges); NULL: offset + r, r the row */
    const I *order;         /* (n_order): by label, 0 or more; NULL: the label itself */
    int64_t offset, n_order;
} NAME(sar_labels);

int NAME(sar_extremum_forward)(T *restrict out, I *restrict arg, const NAME(sar_csr) *csr, const NAME(sar_labels) *labels,
                               const T *restrict x, int sign, int64_t n_feat);
int NAME(sar_extremum_backward)(T *restrict dx, double *restrict sums, const T *restrict g, const I *restrict arg,
                                const I *restrict place, int64_t offset, int64_t n_dst, int64_t n_src, int64_t n_feat);
int NAME(sar_gather_rows_forward)(T *restrict out, const T *restrict x, const I *restrict index, int64_t n_rows,
                                  int64_t n_index, int64_t n_feat);
int NAME(sar_gather_rows_backward)(T *restrict out, const T *restrict rows, const I *restrict index, int64_t n_rows,
                                   int64_t n_index, int64_t n_feat);
int NAME(sar_exact_spmm_forward)(double *restrict sums, T *restrict out, double *restrict workspace, const double *restrict grid,
                                 const double *restrict scale, const NAME(sar_sum) *sum, int accumulate);
int NAME(sar_exact_attend_forward)(double *restrict l, double *restrict acc, T *restrict inverse, T *restrict out,
                                   double *restrict workspace, const double *restrict grid_l,
                                   const double *restrict grid, T *restrict m, const T *restrict dst,
                                   const NAME(sar_attention) *a);
int NAME(sar_exact_attend_backward)(double *restrict dz, double *restrict dsrc, T *restrict whole_z,
                                    T *restrict whole_src, double *restrict workspace, double *restrict sums,
                                    const double *restrict grid_z,
                                    const double *restrict grid_s, const T *restrict ends, const T *restrict g,
                                    const NAME(sar_attention) *a, int64_t n_threads, int64_t n_dst);
