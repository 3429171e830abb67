/* The sum of two arrays of one shape, on all threads; NumPy adds on one thread. */
#ifndef T
#include "sarlite.h"
#define KERNEL "add.c"
#include "each_float.h"
#else

/* out[i] = a[i] + b[i]
 *
 * inputs   a, b (n)
 * output   out (n), overwritten; it may be a or b
 * cost     O(n)
 */
int NAME(sar_add_forward)(T *out, const T *a, const T *b, int64_t n)
{
    int team = sar_team(n);
#pragma omp parallel for simd num_threads(team) schedule(static)
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
    return SAR_OK;
}
#endif
