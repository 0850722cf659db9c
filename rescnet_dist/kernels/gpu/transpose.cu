// Transposed copies of matrices, in single precision, or in half precision, optionally with the
// remainders that rounding to 11 bits leaves. The matrix units of a GPU are fastest if the numbers
// that are summed over are contiguous. The host defines HALF.

#include <cuda_fp16.h>

#define TILE 32
#define LINES 8
#if HALF
typedef half number;
#else
typedef float number;
#endif

// Write a tile, which starts at this row and column, transposed to high and low (…, pitch). If low
// is null, only high is written.
__device__ void write_transposed(const float (&tile)[TILE][TILE + 1], number* __restrict__ high,
                                 number* __restrict__ low, long row, long column, long pitch) {
    for (int y = threadIdx.y; y < TILE; y += LINES) {
        long target = (column + y) * pitch + row + threadIdx.x;
        float value = tile[threadIdx.x][y];
#if HALF
        half rounded = __float2half_rn(value);
        high[target] = rounded;
        if (low) low[target] = __float2half_rn(value - __half2float(rounded));
#else
        high[target] = value;
#endif
    }
}

// Transpose source (rows, source_pitch), of which `columns` columns are used, to high and low (…,
// pitch), padded with zeros. If shift and rest (columns,) are not null, they are subtracted from
// each row, one after the other; if factors (rows,) are not null, each row is multiplied by its
// factor. If last (columns,) is not null, it follows the last row as it is.
extern "C" __global__ void transpose(const float* __restrict__ source,
                                     const float* __restrict__ shift,
                                     const float* __restrict__ rest,
                                     const float* __restrict__ factors,
                                     const float* __restrict__ last, number* __restrict__ high,
                                     number* __restrict__ low, long rows, long columns,
                                     long source_pitch, long pitch) {
    __shared__ float tile[TILE][TILE + 1];
    long column = blockIdx.x * (long)TILE, row = blockIdx.y * (long)TILE;
    long source_column = column + threadIdx.x;
    bool inside = source_column < columns;
    float column_shift = shift && inside ? shift[source_column] : 0.0f,
          column_rest = rest && inside ? rest[source_column] : 0.0f;
    for (int y = threadIdx.y; y < TILE; y += LINES) {
        long source_row = row + y;
        float value = 0.0f;
        if (inside && source_row < rows) {
            value = source[source_row * source_pitch + source_column];
            if (shift) value = value - column_shift - column_rest;
            if (factors) value *= factors[source_row];
        } else if (inside && last && source_row == rows) {
            value = last[source_column];
        }
        tile[y][threadIdx.x] = value;
    }
    __syncthreads();
    write_transposed(tile, high, low, row, column, pitch);
}

// Transpose images, one per row: the pixels (height, width) of each, of which every row starts with
// `margin` zeros and is padded with zeros to `across` pixels. A pixel is (… − shift)·scale of the
// channels of maps (rows, height, width, first) and then of images (…, second), padded to
// `channels`. It is multiplied by the factor of its image, unless factors (rows,) are null.
extern "C" __global__ void transpose_pixels(const float* __restrict__ maps,
                                            const float* __restrict__ images,
                                            const float* __restrict__ shift,
                                            const float* __restrict__ scale,
                                            const float* __restrict__ factors,
                                            number* __restrict__ high, number* __restrict__ low,
                                            int rows, int height, int width, int first, int second,
                                            int margin, int across, int channels, long pitch) {
    __shared__ float tile[TILE][TILE + 1];
    long column = blockIdx.x * (long)TILE, row = blockIdx.y * (long)TILE;
    int source_column = (int)column + threadIdx.x, pixel = source_column / channels,
        channel = source_column % channels;
    int y = pixel / across, x = pixel % across - margin;
    bool inside = y < height && x >= 0 && x < width && channel < first + second;
    bool is_map = channel < first;
    const float* source = is_map ? maps : images;
    long step = (long)height * width * (is_map ? first : second);
    long position =
        ((long)y * width + x) * (is_map ? first : second) + channel - (is_map ? 0 : first);
    float pixel_shift = inside ? shift[channel] : 0.0f,
          pixel_scale = inside ? scale[channel] : 0.0f;
    for (int line = threadIdx.y; line < TILE; line += LINES) {
        long source_row = row + line;
        bool used = inside && source_row < rows;
        float value =
            used ? (source[source_row * step + position] - pixel_shift) * pixel_scale : 0.0f;
        tile[line][threadIdx.x] = used && factors ? value * factors[source_row] : value;
    }
    __syncthreads();
    write_transposed(tile, high, low, row, column, pitch);
}
