/* The prototypes of all kernels for the instruction set ISA. */
#define KERNEL "prototypes_rows.h"
#define ALSO_BFLOAT16
#include "each_index.h"
#define KERNEL "prototypes_index.h"
#include "each_index.h"
#define KERNEL "prototypes_float.h"
#include "each_float.h"
#define KERNEL "prototypes_indices.h"
#include "each_indices.h"
