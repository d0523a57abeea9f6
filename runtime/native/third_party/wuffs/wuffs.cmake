# How Wuffs is compiled for hybridge-cli: with the decoders of these formats, and for these forms of pixels alone.
set(WUFFS_DEFINITIONS
    WUFFS_IMPLEMENTATION WUFFS_CONFIG__MODULES WUFFS_CONFIG__DST_PIXEL_FORMAT__ENABLE_ALLOWLIST
)
foreach(module BASE ADLER32 BMP CRC32 DEFLATE GIF JPEG PNG ZLIB)
  list(APPEND WUFFS_DEFINITIONS WUFFS_CONFIG__MODULE__${module})
endforeach()
foreach(format BGRA_NONPREMUL_4X16LE RGB RGBA_NONPREMUL)
  list(APPEND WUFFS_DEFINITIONS WUFFS_CONFIG__DST_PIXEL_FORMAT__ALLOW_${format})
endforeach()
