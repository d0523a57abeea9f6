// The drafter inside an artifact (--drafter, --mtp of hybridge export): it proposes from the model's own hidden states.
//
//   hybridge::BlockDrafter drafter(session);   // where session.facts().has_drafter()
//   auto done = hybridge::generate(session, prompt, {.max_new_tokens = 64}, drafter, [](int64_t token) { return show(token); });
#ifndef HYBRIDGE_NATIVE_BLOCK_DRAFTER_H
#define HYBRIDGE_NATIVE_BLOCK_DRAFTER_H

#include <hybridge/calibration.h>
#include <hybridge/drafter.h>
#include <hybridge/pace.h>
#include <hybridge/session.h>

namespace hybridge {

// While it lives and listens, the session keeps the hidden states that it has yet to read. Its state rolls back with the session's.
class BlockDrafter : public Paced {
 public:
  explicit BlockDrafter(Session& session) : session_(session) { listen(true); }
  ~BlockDrafter() { listen(false); }

  BlockDrafter(const BlockDrafter&) = delete;
  BlockDrafter& operator=(const BlockDrafter&) = delete;

  // Whether it is to read what is committed from now on. It need not, where a text goes on for long without it.
  void listen(bool wanted) { session_.keep_hidden(wanted); }

  // Its best tokens, and how likely each is to be right: as likely as such tokens were so far. Nothing where it fails, too: the
  // text does not need it.
  Proposal propose(Tokens text, size_t limit) {
    calibration_.learn(text);
    const auto drafted = session_.draft(text.back(), limit);
    if (!drafted.ok()) return {};
    Proposal proposal(drafted->tokens);
    proposal.chances = calibration_.propose(text.size(), drafted->tokens, drafted->chances);
    return proposal;
  }

 private:
  Session& session_;
  Calibration calibration_;
};

}  // namespace hybridge

#endif
