// Eight bytes a step by eight tables (Intel's slicing-by-8): a plan of gigabytes is checked in seconds, without intrinsics.
#include "replay/crc32.h"

static uint32_t table[8][256];

static void fill_tables(void)
{
    if (table[0][1])
        return;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0xedb88320u : crc >> 1;
        table[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int byte = 0; byte < 256; byte++)
            table[slice][byte] = (table[slice - 1][byte] >> 8) ^ table[0][table[slice - 1][byte] & 255];
}

uint32_t crc32_of(const void *bytes, size_t length)
{
    fill_tables();
    const unsigned char *at = bytes;
    uint32_t crc = 0xffffffffu;
    for (; length >= 8; length -= 8, at += 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^ table[5][crc >> 16 & 255] ^ table[4][crc >> 24] ^
              table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^ table[0][at[7]];
    }
    for (; length > 0; length--, at++)
        crc = (crc >> 8) ^ table[0][(crc ^ *at) & 255];
    return ~crc;
}
