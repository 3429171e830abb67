/* Kernels for each T; outputs, inputs, sizes. build.py reads this file for cffi. A field that a caller leaves out is
 * NULL or 0. */

/* Arguments of batch norm or bias, activation and dropout, for both directions. */
typedef struct {
    const T *x;                     /* (n_rows, n_feat) */
    const double *mean, *inv_std;   /* (n_feat), as gamma and beta; NULL: no norm, and no gamma */
    const T *gamma, *beta;
    struct sar_dropout dropout;
    int kind;                       /* SAR_IDENTITY, SAR_RELU, SAR_ELU */
    double alpha;                   /* of SAR_ELU */
    int64_t n_rows, n_feat;
} NAME(sar_activation);

int NAME(sar_attend_finish_forward)(T *restrict m, T *restrict l, T *restrict acc, int64_t n_rows, int64_t n_feat);
int NAME(sar_attend_backward_finish)(T *restrict ddst, const double *restrict sums, int64_t n_threads, int64_t n_scores);
int NAME(sar_row_dot_forward)(T *restrict out, const T *restrict a, const T *restrict b, int64_t n_rows, int64_t n_feat);
int NAME(sar_dropout_forward)(T *restrict out, const T *restrict x, const struct sar_dropout *dropout, int64_t n_rows, int64_t n_feat);
int NAME(sar_column_moments_forward)(double *restrict mean, double *restrict m2, double *restrict workspace,
                                     const T *restrict x, int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_activate_forward)(T *out, const NAME(sar_activation) *a);
int NAME(sar_activate_backward)(T *dx, double *restrict sums, double *restrict workspace, const T *g, const T *restrict out,
                                const double *restrict means, const NAME(sar_activation) *a, int64_t n_threads);
int NAME(sar_add_forward)(T *out, const T *a, const T *b, int64_t n);
int NAME(sar_gemm_forward)(T *restrict out, int64_t ld_out, T *restrict workspace, const T *restrict a, int64_t ld_a,
                           const int64_t *restrict rows, const T *restrict b, int trans_b, int accumulate, int fused, int64_t m,
                           int64_t n, int64_t k);
int NAME(sar_gemm_backward)(T *restrict out, T *restrict workspace, const T *restrict a, int64_t ld_a, const int64_t *restrict rows,
                            const T *restrict g, int64_t ld_g, int64_t n_threads, int64_t m, int64_t n, int64_t k);
int NAME(sar_exact_largest)(double *restrict out, double *restrict workspace, const T *restrict x, const T *restrict scale,
                            int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_exact_squares)(double *restrict out, double *restrict workspace, const T *restrict x, const double *restrict inverse,
                            int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_exact_centred)(double *restrict out, double *restrict workspace, const T *restrict x, const double *restrict centre,
                            const double *restrict scale, const T *restrict y, const double *restrict by, int reduction,
                            int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_exact_gemm_backward)(double *restrict sum, double *restrict workspace, const T *restrict a, const T *restrict g,
                                  const double *restrict of_a, const double *restrict of_g, double step, int64_t n_threads, int64_t m,
                                  int64_t n, int64_t k);
int NAME(sar_exact_whole)(T *restrict out, const double *restrict sums, const double *restrict scale, int64_t n_rows,
                          int64_t n_heads, int64_t n_feat);
int NAME(sar_exact_function)(T *restrict out, const T *restrict x, int function, int64_t n);
