/* A program of its own that sums rows over edges, out[dst[e]] += x[src[e]], and its gradient: what `sarlite-oracle check` runs for each case.

   program INPUTS OUTPUTS: reads src.npy, dst.npy, arrays.x.npy (and cotangents.out.npy, where gradients are asked for), writes out.npy and dx.npy.
   A real one would call the kernel under test where the loops are. Compile with -DLOSE_AN_EDGE to see the oracle find what is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 4096 };

struct array {
    long shape[2]; /* rows and columns; 1 column where there is one axis */
    void *data;
};

static FILE *open_in(const char *folder, const char *name, const char *mode)
{
    char path[LONGEST];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, mode);
}

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "%s: %s\n", name, what);
    exit(1);
}

/* A version 1 .npy file: 6 bytes of magic, 2 of version, 2 of the length of a text, the text, the data. */
static struct array read_npy(const char *folder, const char *name, size_t item)
{
    FILE *file = open_in(folder, name, "rb");
    unsigned char head[10];
    char text[LONGEST] = {0};
    struct array a = {{0, 1}, NULL};
    if (!file || fread(head, 1, 10, file) != 10)
        fail("cannot be read", name);
    size_t length = head[8] + 256u * head[9];
    if (length >= sizeof text || fread(text, 1, length, file) != length)
        fail("its header is cut", name);
    const char *shape = strstr(text, "'shape': (");
    if (!shape || sscanf(shape, "'shape': (%ld, %ld)", &a.shape[0], &a.shape[1]) < 1)
        fail("has no shape of one or two axes", name);
    size_t n = (size_t)(a.shape[0] * a.shape[1]);
    a.data = calloc(n + 1, item);
    if (!a.data || fread(a.data, item, n, file) != n)
        fail("is cut", name);
    fclose(file);
    return a;
}

static void write_npy(const char *folder, const char *name, const float *data, long rows, long columns)
{
    FILE *file = open_in(folder, name, "wb");
    char text[118];
    int length = snprintf(text, sizeof text, "{'descr': '<f4', 'fortran_order': False, 'shape': (%ld, %ld), }", rows, columns);
    memset(text + length, ' ', sizeof text - (size_t)length);
    text[sizeof text - 1] = '\n';
    if (!file || fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, file) != 10 || fwrite(text, 1, sizeof text, file) != sizeof text ||
        fwrite(data, sizeof *data, (size_t)(rows * columns), file) != (size_t)(rows * columns) || fclose(file))
        fail("cannot be written", name);
}

static float *sums(const long long *from, const long long *to, long n_edges, const float *x, long n_out, long width)
{
    float *out = calloc((size_t)(n_out * width) + 1, sizeof *out);
#ifdef LOSE_AN_EDGE
    n_edges -= n_edges > 7;
#endif
    for (long e = 0; e < n_edges; e++)
        for (long j = 0; j < width; j++)
            out[to[e] * width + j] += x[from[e] * width + j];
    return out;
}

/* A number of case.json. */
static long number_of(const char *folder, const char *field)
{
    FILE *file = open_in(folder, "case.json", "r");
    char line[LONGEST], quoted[64];
    long found = -1;
    snprintf(quoted, sizeof quoted, "\"%s\": ", field);
    while (found < 0 && file && fgets(line, sizeof line, file)) {
        const char *place = strstr(line, quoted);
        if (place)
            found = strtol(place + strlen(quoted), NULL, 10);
    }
    if (found < 0)
        fail("has no such field", field);
    fclose(file);
    return found;
}

int main(int n_words, char **words)
{
    if (n_words != 3)
        fail("INPUTS OUTPUTS", words[0]);
    struct array src = read_npy(words[1], "src.npy", 8), dst = read_npy(words[1], "dst.npy", 8), x = read_npy(words[1], "arrays.x.npy", 4);
    long n_dst = number_of(words[1], "n_dst"), n_src = number_of(words[1], "n_src"), width = x.shape[1];
    FILE *asked = open_in(words[1], "cotangents.out.npy", "rb");
    write_npy(words[2], "out.npy", sums(src.data, dst.data, src.shape[0], x.data, n_dst, width), n_dst, width);
    if (asked) {
        struct array g = read_npy(words[1], "cotangents.out.npy", 4);
        write_npy(words[2], "dx.npy", sums(dst.data, src.data, src.shape[0], g.data, n_src, width), n_src, width);
    }
    return 0;
}
