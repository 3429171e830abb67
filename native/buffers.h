/* See buffers.c. */
#ifndef SARLITE_BUFFERS_H
#define SARLITE_BUFFERS_H

#include "sarlite.h"

/* NumPy's PyDataMem_Handler, version 1 (NEP 49); of a stable layout. */
struct sar_handler {
    char name[127];
    uint8_t version;
    struct {
        void *context;
        void *(*malloc)(void *context, size_t size);
        void *(*calloc)(void *context, size_t n, size_t size);
        void *(*realloc)(void *context, void *block, size_t size);
        void (*free)(void *context, void *block, size_t size);
    } allocator;
};

struct sar_buffers;
struct sar_buffers *sar_buffers_open(void);
void sar_buffers_trim(struct sar_buffers *b);
void sar_buffers_close(struct sar_buffers *b);
void sar_buffers_end(void *capsule);
int64_t sar_buffers_fresh(const struct sar_buffers *b);
int64_t sar_buffers_bytes(const struct sar_buffers *b);

#endif
