"""Registration with Gymnasium, done by `import bipars`; nothing heavy may be imported here."""

import gymnasium


def register() -> None:
    """Makes `gymnasium.make("bipars/CartPole-v0")` and its continuous sister work."""
    for name, continuous in (("bipars/CartPole-v0", False), ("bipars/CartPoleContinuous-v0", True)):
        gymnasium.register(
            name,
            entry_point="bipars.envs.gymnasium_cartpole:CartPoleEnv",
            max_episode_steps=200,
            kwargs={"continuous": continuous},
        )
