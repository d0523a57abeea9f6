#include "engine/speculative.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace hybridge {

namespace {

// Runs `call` and adds its time.
template <typename Call>
auto timed(double& seconds, Call call) {
  const double began = seconds_now();
  auto answer = call();
  seconds += seconds_now() - began;
  return answer;
}

}  // namespace

template <typename Step>
std::invoke_result_t<Step> Generator::in_turn(Step&& step) {
  if (options_.turns != nullptr) options_.turns->take();
  auto done = step();
  if (options_.turns != nullptr) options_.turns->release();
  return done;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Generator::Generator(Session& session, GenerationOptions options, std::vector<Drafter*> drafters)
    : session_(session),
      options_(std::move(options)),
      drafters_(std::move(drafters)),
      sampler_(options_.sampling, options_.mask, options_.noise),
      longest_(static_cast<size_t>(session.info().verify_len())),
      costs_(session.costs()) {
  if (longest_ < 2) drafters_.clear();
  if (options_.block_length > 0) fixed_length_ = std::min(options_.block_length, longest_);
  for (Drafter* each : drafters_) {
    each->begin();
    controller_of(*each).begin(costs_, each->is_cheap());
  }
}

Result<Tokens> Generator::begin(Tokens prompt) {
  auto first = in_turn([&] { return read(prompt); });
  is_running_ = first.ok();
  return first;
}

Result<Tokens> Generator::next() {
  if (!std::exchange(is_running_, false))
    return Status(HYBRIDGE_INVALID_STATE, "the generation has ended; begin another");
  auto round = in_turn([&] { return follow(); });
  is_running_ = round.ok();
  return round;
}

Result<Generated> Generator::run(Tokens prompt, const OnToken& on_token) {
  const auto& ends = session_.info().eos_ids;
  Tokens given = HYBRIDGE_TRY(begin(prompt));
  while (!given.empty()) {
    size_t taken = 0;
    bool is_wanted = true;
    while (taken < given.size() && is_wanted) {
      const int64_t token = given[taken++];
      is_wanted = on_token(token) && std::ranges::find(ends, token) == ends.end() && !is_cancelled();
    }
    if (!is_wanted) {
      HYBRIDGE_TRY(end(taken));
      break;
    }
    given = HYBRIDGE_TRY(next());
  }
  return done();
}

Status Generator::end(size_t taken) {
  is_running_ = false;
  return in_turn([&] { return settle(std::min(taken, now_.tokens.size())); });
}

Status Generator::nothing_allowed() const {
  const std::string why = options_.why ? options_.why() : std::string();
  return Status(HYBRIDGE_INVALID_GRAMMAR, !why.empty() ? why : "the mask leaves no token that may come next");
}

Result<Tokens> Generator::read(Tokens prompt) {
  if (options_.max_new_tokens < 1)
    return Status(HYBRIDGE_INVALID_ARGUMENT, "max_new_tokens is 0, but must be at least 1");
  HYBRIDGE_TRY(options_.sampling.check(session_.info().vocab_size));
  const Logits logits = HYBRIDGE_TRY(timed(done_.prefill_seconds, [&] {
    return session_.prefill(prompt, options_.cancelled, options_.on_read);
  }));
  text_.assign(session_.tokens().begin(), session_.tokens().end());
  sampler_.begin(text_.size());
  const int64_t first = sampler_.draw(logits.last(), text_);
  if (first < 0) return nothing_allowed();
  see(first, logits.last());
  now_ = Round{.tokens = {first}};
  return Tokens(now_.tokens);
}

Result<Tokens> Generator::follow() {
  HYBRIDGE_TRY(settle(now_.tokens.size()));
  if (is_stuck_) return nothing_allowed();
  if (done_.tokens.size() == options_.max_new_tokens || session_.room() == 0 || is_cancelled()) return Tokens();
  if (!std::exchange(has_read_, true)) read_prompt();
  HYBRIDGE_TRY(round());
  if (now_.tokens.empty() && is_stuck_) return nothing_allowed();
  return Tokens(now_.tokens);
}

void Generator::see(int64_t token, std::span<const float> logits) {
  if (options_.watch != nullptr && token >= 0) options_.watch(token, logits);
}

Status Generator::round() {
  const double began = options_.clock(), started = seconds_now();
  now_ = Round();
  Proposal proposal = forced();
  now_.is_forced = !proposal.tokens.empty();
  if (!now_.is_forced) proposal = paying_proposal();
  if (is_cancelled()) return Status();
  HYBRIDGE_TRY(proposal.tokens.empty() ? decode() : verify(proposal));
  now_.proposed = std::move(proposal.tokens);
  now_.is_counted = true;
  now_.seconds = options_.clock() - began;
  done_.new_seconds += seconds_now() - started;
  return Status();
}

Status Generator::settle(size_t taken) {
  text_.insert(text_.end(), now_.tokens.begin(), now_.tokens.begin() + static_cast<ptrdiff_t>(taken));
  done_.tokens.insert(done_.tokens.end(), now_.tokens.begin(), now_.tokens.begin() + static_cast<ptrdiff_t>(taken));
  const Round last = std::exchange(now_, Round());
  if (!last.is_counted) return Status();
  const double began = options_.clock(), started = seconds_now();
  const size_t proposed = last.proposed.size(), accepted = last.tokens.empty() ? 0 : last.tokens.size() - 1;
  if (proposed > 0)
    HYBRIDGE_TRY(timed(done_.commit_seconds, [&] { return session_.commit(static_cast<int64_t>(taken)); }));
  const double seconds = last.seconds + options_.clock() - began;
  done_.new_seconds += seconds_now() - started;
  account(last, seconds, accepted, Tokens(last.tokens).first(taken));
  return Status();
}

void Generator::account(const Round& round, double seconds, size_t accepted, Tokens came) {
  const double target = seconds - round.drafting - round.comparing;
  const size_t proposed = round.proposed.size();
  costs_.add(1 + proposed, target, round.drafting + round.comparing == 0);
  for (Drafter* each : drafters_) {
    DraftLengthController& controller = controller_of(*each);
    if (each != round.drafter) controller.round_passed(seconds);
    else controller.round_done(costs_, round.planned, proposed, accepted, target + round.drafting, round.drafting);
    // Whatever a decode takes longer after a proposal or a block, because the caches hold other things, is a part of
    // its price.
    if (proposed == 0 && (each == round.compared || each == before_)) {
      controller.spend(costs_, std::max(0.0, std::min(target, 2 * costs_.round_seconds(1)) - costs_.round_seconds(1)));
    }
    for (const int64_t token : came) controller.compare(token);
  }
  before_ = proposed > 0 ? round.drafter : nullptr;
}

Proposal Generator::forced() {
  if (options_.forced == nullptr || most() < 2 || longest_ < 2) return {};
  Proposal proposal(options_.forced(text_, std::min(most(), longest_) - 1));
  if (!fixed_length_) proposal.tokens.resize(costs_.certain_tokens_worth_verifying(proposal.tokens.size()));
  return proposal;
}

size_t Generator::most() const {
  return std::min(options_.max_new_tokens - done_.tokens.size(), static_cast<size_t>(session_.room()));
}

Proposal Generator::paying_proposal() {
  const size_t limit = std::min(most(), longest_) - 1;
  if (limit == 0) return {};
  for (Drafter* each : drafters_) controller_of(*each).set_unread(each->unread(text_));
  Choice free, best;
  for (Drafter* each : drafters_) {
    if (each->is_cheap()) choose(free, *each, propose(*each, limit));
  }
  for (Drafter* each : drafters_) {
    if (each->is_cheap()) continue;
    const BlockPlan plan = this->plan(*each, std::min(limit, each->longest()), std::nullopt);
    if (plan.length > 1 && plan.speed > std::max(free.plan.speed, best.plan.speed)) best = {each, plan, {}};
  }
  for (Drafter* each : drafters_) {
    if (each == best.drafter || each->is_cheap()) continue;
    if (controller_of(*each).wants_shadow(costs_, 1 + each->longest())) propose_in_shadow(*each);
  }
  if (best.drafter == nullptr || !ask(best)) best = std::move(free);
  now_.drafter = best.drafter;
  now_.planned = best.plan.length;
  return std::move(best.proposal);
}

BlockPlan Generator::plan(Drafter& drafter, size_t limit, std::optional<double> confidence) const {
  if (fixed_length_) return {std::min(*fixed_length_, limit + 1), std::numeric_limits<double>::infinity()};
  return controller_of(drafter).plan(costs_, limit + 1, confidence);
}

void Generator::choose(Choice& best, Drafter& drafter, Proposal proposal) {
  if (proposal.tokens.empty()) return;
  const BlockPlan plan = this->plan(drafter, proposal.tokens.size(), proposal.confidence);
  if (plan.length > 1 && plan.speed > best.plan.speed) {
    proposal.tokens.resize(plan.length - 1);
    best = {&drafter, plan, std::move(proposal)};
  } else if (!proposal.confidence) {
    controller_of(drafter).shadow(costs_, std::move(proposal.tokens));
  }
}

bool Generator::ask(Choice& choice) {
  const double began = options_.clock();
  Proposal proposal = propose(*choice.drafter, choice.plan.length - 1);
  const double seconds = options_.clock() - began;
  if (!fixed_length_ && !proposal.confidences.empty()) {
    const size_t worth = costs_.tokens_worth_verifying(proposal.confidences, seconds);
    if (worth > 0) proposal.tokens.resize(worth);
    else return compare_later(*choice.drafter, std::move(proposal.tokens), seconds), false;
  }
  if (proposal.tokens.empty()) return compare_later(*choice.drafter, {}, seconds), false;
  now_.drafting = seconds;
  choice.proposal = std::move(proposal);
  return true;
}

Proposal Generator::propose(Drafter& drafter, size_t limit) {
  Proposal proposal = timed(done_.draft_seconds, [&] { return drafter.propose(text_, limit, sampler_); });
  proposal.tokens.resize(std::min(proposal.tokens.size(), limit));
  if (options_.fitting != nullptr && !proposal.tokens.empty()) {
    proposal.tokens.resize(std::min(proposal.tokens.size(), options_.fitting(text_, proposal.tokens)));
  }
  proposal.confidences.resize(std::min(proposal.confidences.size(), proposal.tokens.size()));
  return proposal;
}

void Generator::read_prompt() {
  const double drafting = done_.draft_seconds;
  for (Drafter* each : drafters_) {
    DraftLengthController& controller = controller_of(*each);
    if (each->is_cheap() || (!fixed_length_ && !controller.could_pay(costs_, 1 + each->longest()))) continue;
    controller.shadow(costs_, propose(*each, DraftLengthController::shadow_length(costs_)).tokens);
  }
  done_.prefill_seconds += std::exchange(done_.draft_seconds, drafting) - drafting;
}

void Generator::propose_in_shadow(Drafter& drafter) {
  const double began = options_.clock();
  Proposal proposal = propose(drafter, DraftLengthController::shadow_length(costs_));
  compare_later(drafter, std::move(proposal.tokens), options_.clock() - began);
}

void Generator::compare_later(Drafter& drafter, std::vector<int64_t> tokens, double seconds) {
  now_.comparing += seconds;
  now_.compared = &drafter;
  controller_of(drafter).shadow(costs_, std::move(tokens), seconds);
}

Status Generator::decode() {
  const Logits logits = HYBRIDGE_TRY(timed(done_.decode_seconds, [&] { return session_.decode(text_.back()); }));
  ++done_.decodes;
  const int64_t token = sampler_.draw(logits.last(), text_);
  is_stuck_ = token < 0;
  if (is_stuck_) return Status();
  see(token, logits.last());
  now_.tokens = {token};
  return Status();
}

Status Generator::verify(const Proposal& proposal) {
  std::vector<int64_t> block = {text_.back()};
  block.insert(block.end(), proposal.tokens.begin(), proposal.tokens.end());
  const Logits logits = HYBRIDGE_TRY(timed(done_.verify_seconds, [&] { return session_.verify(block); }));
  now_.tokens = accept(logits, proposal);
  const size_t proposed = proposal.tokens.size(), accepted = now_.tokens.empty() ? 0 : now_.tokens.size() - 1;
  done_.proposed += proposed;
  done_.accepted += accepted;
  done_.forced += now_.is_forced ? accepted : 0;
  done_.rollbacks += accepted < proposed;
  ++done_.verifies;
  return Status();
}

std::vector<int64_t> Generator::accept(const Logits& logits, const Proposal& proposal) {
  const size_t known = text_.size();
  const auto& proposed = proposal.tokens;
  for (size_t i = 0; i == 0 || (i <= proposed.size() && proposed[i - 1] == text_.back()); ++i) {
    const int64_t token = sampler_.draw(logits[i], text_);
    is_stuck_ = token < 0;
    if (is_stuck_) break;
    see(token, logits[i]);
    text_.push_back(token);
  }
  const std::vector<int64_t> tokens(text_.begin() + static_cast<ptrdiff_t>(known), text_.end());
  text_.resize(known);
  return tokens;
}

}  // namespace hybridge
