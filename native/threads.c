/* The number of OpenMP threads that the calling thread's kernels use; 1 where OpenMP is missing. */
#include "sarlite.h"

int sar_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

int sar_set_threads(int n_threads)
{
#ifdef _OPENMP
    omp_set_num_threads(n_threads);
#else
    (void)n_threads;
#endif
    return SAR_OK;
}
