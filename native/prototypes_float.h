/* Kernels for each T; outputs, inputs, sizes. build.py reads this file for cffi. */
int NAME(sar_attend_finish_forward)(T *restrict m, T *restrict l, T *restrict acc, int64_t n_rows, int64_t n_feat);
int NAME(sar_attend_backward_finish)(T *restrict ddst, const double *restrict sums, int64_t n_threads, int64_t n_scores);
int NAME(sar_row_dot_forward)(T *restrict out, const T *restrict a, const T *restrict b, int64_t n_rows, int64_t n_feat);
int NAME(sar_dropout_forward)(T *restrict out, const T *restrict x, const int64_t *restrict ids, uint64_t key, double p,
                              int64_t n_rows, int64_t n_feat);
int NAME(sar_column_moments_forward)(double *restrict mean, double *restrict m2, double *restrict workspace,
                                     const T *restrict x, int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_activate_forward)(T *out, const T *x, const double *restrict mean,
                               const double *restrict inv_std, const T *restrict gamma, const T *restrict beta,
                               const int64_t *restrict ids, uint64_t key, double p, int kind, double alpha, int64_t n_rows,
                               int64_t n_feat);
int NAME(sar_activate_backward)(T *dx, double *restrict sums, double *restrict workspace, const T *g,
                                const T *restrict x, const T *restrict out, const double *restrict mean,
                                const double *restrict inv_std, const T *restrict gamma, const T *restrict beta,
                                const double *restrict means, const int64_t *restrict ids, uint64_t key, double p, int kind,
                                double alpha, int64_t n_threads, int64_t n_rows, int64_t n_feat);
int NAME(sar_add_forward)(T *out, const T *a, const T *b, int64_t n);
int NAME(sar_gemm_forward)(T *restrict out, T *restrict workspace, const T *restrict a, const T *restrict b, int trans_b, int accumulate,
                           int64_t m, int64_t n, int64_t k);
int NAME(sar_gemm_backward)(T *restrict out, T *restrict workspace, const T *restrict a, const T *restrict g, int64_t n_threads,
                            int64_t m, int64_t n, int64_t k);
