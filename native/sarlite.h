/* Included by every kernel: the plain prototypes, and the division of rows among threads. If a file is compiled for an
 * instruction set, ISA is the suffix of its functions: _portable, _avx2, _avx512.
 *
 * Names: indptr, indices and eid are a CSR whose rows are destinations; n_dst, n_src, n_edges, n_heads and n_feat are
 * sizes. d<name> is the gradient of <name>. T is the value type (float, double), I the index type (int32_t, int64_t).
 * Backward kernels and sums ACCUMULATE into their outputs unless their comments say that they overwrite them. Arrays are
 * C-contiguous. The Python code in sarlite/kernels/ checks arguments before a call.
 */
#ifndef SARLITE_H
#define SARLITE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "prototypes_plain.h"

/* SAR_INLINE marks a helper that must be compiled for the instruction set of its caller. */
#if defined(__GNUC__)
#define SAR_INLINE static inline __attribute__((always_inline))
#define SAR_PREFETCH(address) __builtin_prefetch(address, 0, 2)         /* into the second-level cache */
#define SAR_PREFETCH_NEAR(address) __builtin_prefetch(address, 0, 3)    /* into the first */
#define SAR_PREFETCH_OUT(address) __builtin_prefetch(address, 1, 3)     /* into the first, to be written */
#else
#define SAR_INLINE static inline
#define SAR_PREFETCH(address) ((void)(address))
#define SAR_PREFETCH_NEAR(address) ((void)(address))
#define SAR_PREFETCH_OUT(address) ((void)(address))
#endif

#define SAR_PASTE_(a, b, c) a##b##c
#define SAR_PASTE(a, b, c) SAR_PASTE_(a, b, c)

/* With fewer multiply-adds than this, starting a team of threads costs more than the work. */
#define SAR_SERIAL_WORK 32768

/* Number of ranges of rows for each thread, if ranges have different costs and threads take one after another. */
#define SAR_PARTS 32

/* Threads for `work` multiply-adds: a function of the work and of the caller's setting only. */
static inline int sar_team(int64_t work)
{
#ifdef _OPENMP
    return work < SAR_SERIAL_WORK ? 1 : omp_get_max_threads();
#else
    (void)work;
    return 1;
#endif
}

static inline int sar_team_size(void)
{
#ifdef _OPENMP
    return omp_get_num_threads();
#else
    return 1;
#endif
}

static inline int sar_team_rank(void)
{
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

/* The first of n items of equal cost that belong to part `part` of `n_parts`. */
static inline int64_t sar_split(int64_t n, int64_t part, int64_t n_parts)
{
    return n / n_parts * part + n % n_parts * part / n_parts;
}

/* The first row that belongs to part `part` of `n_parts`, if the cost of a row is its number of edges plus one: binary
 * search in indptr[i] + i. Degrees in power-law graphs differ by orders of magnitude, so equal numbers of rows would not
 * be equal work. */
static inline int64_t sar_split_rows(const int64_t *indptr, int64_t n_rows, int64_t part, int64_t n_parts)
{
    int64_t goal = sar_split(indptr[n_rows] - indptr[0] + n_rows, part, n_parts);
    int64_t low = 0, high = n_rows;
    if (part == n_parts) return n_rows;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (indptr[middle] - indptr[0] + middle < goal) low = middle + 1;
        else high = middle;
    }
    return low;
}

#endif
