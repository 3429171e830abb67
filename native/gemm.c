/* Dense products on the kernels' own threads: each calls the BLAS for its share. A BLAS with threads of its own would spin for
 * milliseconds after each call on the cores that the next kernel needs. */
#ifndef T
#include "sarlite.h"
#define KERNEL "gemm.c"
#include "each_float.h"
#else
#ifndef GEMM_ROWS
#define GEMM_ROWS 1024
#endif

/* ?gemm of a Fortran BLAS with 32-bit integers; matrices by columns. */
typedef void (*NAME(gemm))(char *, char *, int *, int *, int *, T *, T *, int *, T *, int *, T *, T *, int *);

/* One call: c (m, n) by rows = beta c + op(a) b or op(a) b^T; ld_* are the lengths of rows. The BLAS sees c^T = b^T op(a)^T. */
static void NAME(product)(void *gemm, T *c, const T *a, const T *b, int trans_a, int trans_b, int64_t m, int64_t n, int64_t k,
                          int64_t ld_a, int64_t ld_b, int64_t ld_c, T beta)
{
    int rows = (int)m, columns = (int)n, inner = (int)k, row_a = ld_a > 0 ? (int)ld_a : 1, row_b = ld_b > 0 ? (int)ld_b : 1;
    int row_c = (int)ld_c;
    char op_a = trans_a ? 'T' : 'N', op_b = trans_b ? 'T' : 'N';
    T one = 1;
    if (m > 0 && n > 0)
        ((NAME(gemm))gemm)(&op_b, &op_a, &columns, &rows, &inner, &one, (T *)b, &row_b, (T *)a, &row_a, &beta, c, &row_c);
}

/* out = a @ b or a @ b^T, added to out if `accumulate`
 *
 * inputs   gemm: the BLAS function, on one thread; a (m, k); b (k, n), with trans_b (n, k)
 * output   out (m, n), overwritten or accumulated
 * cost     O(m n k); rows of out are divided among threads. The bits may depend on their number, as any BLAS's do.
 */
int NAME(sar_gemm_forward)(T *restrict out, const T *restrict a, const T *restrict b, void *gemm, int trans_b, int accumulate,
                           int64_t m, int64_t n, int64_t k)
{
    int team = sar_team(m * n * k);
#pragma omp parallel num_threads(team)
    {
        int64_t begin = sar_split(m, sar_team_rank(), sar_team_size()), end = sar_split(m, sar_team_rank() + 1, sar_team_size());
        NAME(product)(gemm, out + begin * n, a + begin * k, b, 0, trans_b, end - begin, n, k, k, trans_b ? k : n, n, accumulate);
    }
    return SAR_OK;
}

/* out = a^T @ g: the gradient of b in a @ b, where k, the number of rows, is large
 *
 * inputs   gemm as above; a (k, m), g (k, n)
 * output   out (m, n), overwritten; workspace (n_threads, m, n): each thread's share of the rows, added in thread order
 * cost     O(m n k); GEMM_ROWS rows at a time stay in the second cache. The smaller side comes first for the BLAS: it is faster so.
 */
int NAME(sar_gemm_backward)(T *restrict out, T *restrict workspace, const T *restrict a, const T *restrict g, void *gemm,
                            int64_t n_threads, int64_t m, int64_t n, int64_t k)
{
    int turned = m < n;
#pragma omp parallel num_threads((int)n_threads)
    {
        T *own = workspace + sar_team_rank() * m * n;
        int64_t end = sar_split(k, sar_team_rank() + 1, sar_team_size()), first = sar_split(k, sar_team_rank(), sar_team_size());
        for (int64_t i = 0; i < m * n; i++) own[i] = 0;
        for (int64_t r = first; r < end; r += GEMM_ROWS) {
            int64_t rows = end - r < GEMM_ROWS ? end - r : GEMM_ROWS;
            if (turned) NAME(product)(gemm, own, g + r * n, a + r * m, 1, 0, n, m, rows, n, m, m, 1);
            else NAME(product)(gemm, own, a + r * m, g + r * n, 1, 0, m, n, rows, m, n, n, 1);
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                int64_t at = turned ? j * m + i : i * n + j;
                T sum = workspace[at];
                for (int64_t t = 1; t < sar_team_size(); t++) sum += workspace[t * m * n + at];
                out[i * n + j] = sum;
            }
    }
    return SAR_OK;
}
#endif
