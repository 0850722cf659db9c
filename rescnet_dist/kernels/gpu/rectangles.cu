// Products of patches from sums of products of pixels: for each pair of offsets in a patch, the sum
// over the rectangle of pixels that the first of them visits.

// Compute total (size, size, used, size, size, used) from sums (height − down, segments + 1,
// length, channels, neighbors·length, channels): the pixels of a row in segments of this length,
// each with the neighboring segments `down` rows below it, starting `first` segments to the right.
// A block of threads computes one pair of offsets and one channel.
extern "C" __global__ void sum_rectangles(const float* __restrict__ sums,
                                          double* __restrict__ total, int size, int height,
                                          int width, int channels, int used, int length,
                                          int segments, int neighbors, int first, int down) {
    int right_column = blockIdx.x % size, left_column = blockIdx.x / size % size;
    int top = blockIdx.x / (size * size), channel = blockIdx.y;
    int right = right_column - left_column;
    if (down == 0 && right < 0) return;  // the same pairs as with the offsets exchanged
    long neighbor_values = (long)neighbors * length * channels, pixel = channels * neighbor_values;
    int rows = height - size + 1, columns = width - size + 1;
    // of the products of a pixel with itself, half suffice
    int first_other = down == 0 && right == 0 ? channel : 0;
    for (int other = first_other + threadIdx.x; other < used; other += blockDim.x) {
        double sum = 0.0;
        for (int y = top; y < top + rows; y++) {
            const float* row =
                sums + (long)y * (segments + 1) * length * pixel + channel * neighbor_values;
#pragma unroll 4
            for (int x = left_column; x < left_column + columns; x++) {
                int position = x % length + right - first * length;
                sum += row[x * pixel + (long)position * channels + other];
            }
        }
        long row_index = ((long)top * size + left_column) * used + channel;
        long column_index = ((long)(top + down) * size + right_column) * used + other;
        long side = (long)size * size * used;
        total[row_index * side + column_index] = sum;
        total[column_index * side + row_index] = sum;
    }
}
