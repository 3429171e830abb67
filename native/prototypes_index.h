/* Kernels for each T and I; outputs, inputs, sizes. build.py reads this file for cffi. */
int NAME(sar_spmm_forward)(T *restrict out, const int64_t *restrict indptr, const I *restrict indices, const I *restrict rows,
                           const I *restrict eid, const T *restrict x, const T *restrict weight,
                           const T *restrict src_scale, const T *restrict dst_scale, int accumulate, int64_t n_dst, int64_t n_src,
                           int64_t n_heads, int64_t n_feat);
int NAME(sar_edge_dot_forward)(T *restrict out, const int64_t *restrict indptr, const I *restrict indices,
                               const I *restrict rows, const I *restrict eid, const T *restrict g, const T *restrict x,
                               const T *restrict dst_scale, int64_t n_dst, int64_t n_heads, int64_t n_feat);
int NAME(sar_extremum_forward)(T *restrict out, I *restrict arg, const int64_t *restrict indptr, const I *restrict indices,
                               const I *restrict rows, const I *restrict label, const int64_t *restrict order,
                               const T *restrict x, int sign, int64_t offset, int64_t n_order, int64_t n_dst, int64_t n_feat);
int NAME(sar_extremum_backward)(T *restrict dx, const T *restrict g, const I *restrict arg, int64_t offset, int64_t n_dst,
                                int64_t n_src, int64_t n_feat);
int NAME(sar_attend_forward)(T *restrict m, T *restrict l, T *restrict acc, const int64_t *restrict indptr,
                             const I *restrict indices, const I *restrict rows, const T *restrict z,
                             const T *restrict src, const T *restrict dst,
                             const int64_t *restrict src_ids, const int64_t *restrict dst_ids, uint64_t n_nodes,
                             uint64_t key, double p, double slope, int64_t n_dst, int64_t n_heads, int64_t n_feat);
int NAME(sar_attend_backward)(T *restrict dz, T *restrict dsrc, double *restrict sums,
                              const int64_t *restrict t_indptr, const I *restrict t_indices, const T *restrict z,
                              const T *restrict src, const T *restrict ends, const T *restrict g,
                              const int64_t *restrict src_ids, const int64_t *restrict dst_ids, uint64_t n_nodes, uint64_t key,
                              double p, double slope, int64_t n_threads, int64_t n_src, int64_t n_dst, int64_t n_heads,
                              int64_t n_feat);
int NAME(sar_gather_rows_forward)(T *restrict out, const T *restrict x, const I *restrict index, int64_t n_rows,
                                  int64_t n_index, int64_t n_feat);
int NAME(sar_gather_rows_backward)(T *restrict out, const T *restrict rows, const I *restrict index, int64_t n_rows,
                                   int64_t n_index, int64_t n_feat);
