/* Kernels for each T; outputs, inputs, sizes. build.py reads this file for cffi. */
int NAME(sar_attend_finish_forward)(T *restrict m, T *restrict l, T *restrict acc, int64_t n_rows, int64_t n_feat);
int NAME(sar_row_dot_forward)(T *restrict out, const T *restrict a, const T *restrict b, int64_t n_rows, int64_t n_feat);
int NAME(sar_dropout_forward)(T *restrict out, const T *restrict x, const int64_t *restrict ids, uint64_t key, double p,
                              int64_t n_rows, int64_t n_feat);
int NAME(sar_column_moments_forward)(double *restrict mean, double *restrict m2, double *restrict workspace,
                                     const T *restrict x, int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_batch_norm_forward)(T *restrict out, const T *restrict x, const double *restrict mean,
                                 const double *restrict inv_std, const T *restrict gamma, const T *restrict beta,
                                 int64_t n_rows, int64_t n_feat);
int NAME(sar_batch_norm_sums_backward)(double *restrict sum_g, double *restrict sum_gx, double *restrict workspace,
                                       const T *restrict g, const T *restrict x, const double *restrict mean,
                                       const double *restrict inv_std, int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_batch_norm_backward)(T *restrict dx, const T *restrict g, const T *restrict x, const double *restrict mean,
                                  const double *restrict inv_std, const T *restrict gamma, const double *restrict mean_g,
                                  const double *restrict mean_gx, int64_t n_rows, int64_t n_feat);
