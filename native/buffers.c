/* An allocator for NumPy's arrays (NEP 49). Large blocks are in one range of addresses. An allocation takes the first
 * free block that is large enough, and leaves the rest of that block free. Adjacent free blocks are merged. A training
 * step allocates the same sizes in the same order in every epoch. So after the first epoch it gets memory that was
 * touched before, while fresh memory costs a page fault for every page. The range is little longer than the largest
 * amount of memory that was in use at one time. All blocks start at a cache line.
 *
 * Every array of the allocator, and every context that may allocate by it, holds a reference to NumPy's capsule of the
 * handler. So the buffers can be freed when the capsule is freed. */
#define _DEFAULT_SOURCE
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include "sarlite.h"
#include "handler.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define LINE 64
#define LARGE (1 << 18)
#define ZERO_PIECE (1 << 20)
#define HUGE_PAGE (1 << 21)    /* of x86-64, and of arm64 with pages of 4 KiB */

/* The header of a block, in the cache line before it. */
struct header {
    size_t size;                /* bytes, this line included; of blocks in the range a multiple of LINE */
    struct header *next;        /* the free block at the next higher address */
};

struct sar_buffers {
    struct sar_handler handler; /* first: NumPy gets its address */
    pthread_mutex_t lock;
    char *begin, *top, *end;    /* the range; from top on all zeros */
    struct header *idle;        /* the free block of the lowest address */
    size_t large;               /* smaller blocks are malloc's, and so are all where no range can be reserved */
    int64_t n_fresh;
    int closed;                 /* nobody asks for memory again and again: large blocks are malloc's, freed ones given back */
};

/* Reserve a range of addresses as long as the machine's memory. Pages take memory only once they are touched. The range
 * begins at a huge page, so that the memory in use is `top` rounded up to huge pages. */
static void reserve(struct sar_buffers *b)
{
    size_t size = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    size_t before = -(uintptr_t)p % HUGE_PAGE;
    if (before) munmap(p, before);
    munmap(p + before + size, HUGE_PAGE - before);
#ifdef MADV_HUGEPAGE
    madvise(p + before, size, MADV_HUGEPAGE);
#endif
    b->begin = b->top = p + before, b->end = b->begin + size;
}

/* The destructor of NumPy's capsule, which frees the buffers. */
void sar_buffers_end(void *capsule)
{
    struct sar_buffers *b = PyCapsule_GetPointer(capsule, "mem_handler");
    if (b->begin) munmap(b->begin, (size_t)(b->end - b->begin));
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static int in_range(const struct sar_buffers *b, const struct header *h) { return (char *)h >= b->begin && (char *)h < b->end; }

/* Take `size` bytes from the first free block that is large enough, else from the top of the range, together with a free
 * block that ends at the top. Return NULL if the range is used up. *zeroed is set if all bytes are known to be zeros. */
static struct header *take(struct sar_buffers *b, size_t size, int *zeroed)
{
    struct header **at = &b->idle, *h = NULL;
    for (; *at; at = &(*at)->next) {
        h = *at;
        if (h->size >= size || (char *)h + h->size == b->top) break;
    }
    if (*at && h->size > size) {
        struct header *rest = (struct header *)((char *)h + size);
        *rest = (struct header){h->size - size, h->next};
        *at = rest;
    } else if (*at && h->size == size) {
        *at = h->next;
    } else {
        char *start = *at ? (char *)h : b->top;
        if (size > (size_t)(b->end - start)) return NULL;
        *zeroed = !*at;
        *at = NULL;             /* the last of the list, if any */
        b->top = start + size;
        b->n_fresh++;
        h = (struct header *)start;
    }
    h->size = size;
    return h;
}

/* Put a block into the list of free blocks, and merge it with adjacent free blocks. */
static void put(struct sar_buffers *b, struct header *h)
{
    struct header *before = NULL, *after = b->idle;
    while (after && after < h) before = after, after = after->next;
    h->next = after;
    if (before) before->next = h;
    else b->idle = h;
    if (after && (char *)h + h->size == (char *)after) h->size += after->size, h->next = after->next;
    if (before && (char *)before + before->size == (char *)h) before->size += h->size, before->next = h->next;
}

/* The first page that begins at an address or after it. */
static char *page_up(char *address)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    return (char *)(((uintptr_t)address + page - 1) / page * page);
}

/* Return the whole pages between two addresses to the system; they then contain zeros. Return the address of the first
 * of them. */
static char *give_back(char *begin, char *end)
{
    char *first = page_up(begin), *last = page_up(end + 1) - sysconf(_SC_PAGESIZE);
    if (first < last) madvise(first, (size_t)(last - first), MADV_DONTNEED);
    return first;
}

/* Allocate a block. *zeroed is set if the block is known to contain only zeros. */
static void *allocate(struct sar_buffers *b, size_t size, int *zeroed)
{
    struct header *h = NULL;
    *zeroed = 0;
    if (size > SIZE_MAX / 2) return NULL;
    size = (size + 2 * LINE - 1) / LINE * LINE;
    if (size > b->large) {
        pthread_mutex_lock(&b->lock);
        if (!b->closed) h = take(b, size, zeroed);
        pthread_mutex_unlock(&b->lock);
    }
    if (!h) {
        void *p = NULL;
        if (posix_memalign(&p, LINE, size)) return NULL;
        h = p;
        h->size = size;
    }
    return (char *)h + LINE;
}

static void *buffers_malloc(void *context, size_t size)
{
    int zeroed;
    return allocate(context, size, &zeroed);
}

static void *buffers_calloc(void *context, size_t n, size_t size)
{
    int zeroed;
    if (size && n > SIZE_MAX / size) return NULL;
    char *p = allocate(context, n * size, &zeroed);
    if (!p || zeroed) return p;
    int64_t bytes = (int64_t)(n * size);
    if (bytes < 4 * ZERO_PIECE) return memset(p, 0, (size_t)bytes);
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < bytes; at += ZERO_PIECE) memset(p + at, 0, (size_t)(bytes - at < ZERO_PIECE ? bytes - at : ZERO_PIECE));
    return p;
}

static void buffers_free(void *context, void *block, size_t size)
{
    struct sar_buffers *b = context;
    struct header *h = block ? (struct header *)((char *)block - LINE) : NULL;
    (void)size;
    if (!h) return;
    if (!in_range(b, h)) {
        free(h);
        return;
    }
    pthread_mutex_lock(&b->lock);
    if (b->closed) give_back((char *)h, (char *)h + h->size);
    else put(b, h);
    pthread_mutex_unlock(&b->lock);
}

static void *buffers_realloc(void *context, void *block, size_t size)
{
    void *fresh = buffers_malloc(context, size);
    if (!block || !fresh) return fresh;
    size_t held = ((struct header *)((char *)block - LINE))->size - LINE;
    memcpy(fresh, block, held < size ? held : size);
    buffers_free(context, block, held);
    return fresh;
}

/* Create buffers; return NULL if there is no memory. The result is also the address of a PyDataMem_Handler, for a
 * capsule with the destructor sar_buffers_end. */
struct sar_buffers *sar_buffers_open(void)
{
    struct sar_buffers *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->handler = (struct sar_handler){"sarlite", 1, {b, buffers_malloc, buffers_calloc, buffers_realloc, buffers_free}};
    b->large = LARGE;
    pthread_mutex_init(&b->lock, NULL);
    reserve(b);
    return b;
}

/* Return the pages of free blocks to the system, and lower the top to the end of the last block in use. */
void sar_buffers_trim(struct sar_buffers *b)
{
#ifdef __linux__                /* elsewhere pages given back need not be zeros */
    pthread_mutex_lock(&b->lock);
    for (struct header **at = &b->idle; *at; at = &(*at)->next) {
        struct header *h = *at;
        char *end = (char *)h + h->size;
        if (end < b->top) {
            give_back((char *)h + LINE, end);
            continue;
        }
        b->top = give_back((char *)h, page_up(end));
        h->size = (size_t)(b->top - (char *)h);
        if (!h->size) *at = NULL;
        break;
    }
    pthread_mutex_unlock(&b->lock);
#else
    (void)b;
#endif
}

/* Close the buffers: trim them, and return each block that is still in use to the system when it is freed. */
void sar_buffers_close(struct sar_buffers *b)
{
    sar_buffers_trim(b);
    pthread_mutex_lock(&b->lock);
    b->closed = 1;
    pthread_mutex_unlock(&b->lock);
}

/* The number of large allocations that extended the range. */
int64_t sar_buffers_fresh(const struct sar_buffers *b) { return b->n_fresh; }

/* The number of bytes of large blocks, in use and free. */
int64_t sar_buffers_bytes(const struct sar_buffers *b) { return b->top - b->begin; }
