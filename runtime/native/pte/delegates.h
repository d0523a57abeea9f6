// Backends of accelerators, whose compiled parts the sessions of a model share: a part has no state, and each session's
// own would be compiled again and hold another copy of the weights.
#ifndef HYBRIDGE_NATIVE_PTE_DELEGATES_H
#define HYBRIDGE_NATIVE_PTE_DELEGATES_H

namespace hybridge::pte {

// Registers a backend "hybridge.NAME" for each NAME of an accelerator's, which need not be there yet.
void register_shared_backends();

}  // namespace hybridge::pte

#endif
